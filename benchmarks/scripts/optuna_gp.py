"""optuna's Gaussian process in a separate environment, which has torch and nothing of hopsml.

    python -m benchmarks.scripts.optuna_gp '{"trials": 40, "seeds": 20}'

Prints {"branin": [best of each seed, ...], ...}.
"""

from __future__ import annotations

import json
import sys
import warnings

from benchmarks.landscapes import ALL, Landscape


def best_of(landscape: Landscape, trials: int, seed: int) -> float:
    """Return the smallest value found."""
    import optuna

    study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=seed))
    for _ in range(trials):
        trial = study.ask()
        bounds = zip(landscape.names, landscape.bounds, strict=True)
        study.tell(trial, landscape.height([trial.suggest_float(name, *pair) for name, pair in bounds]))
    return float(study.best_value)


def main(words: list[str]) -> None:
    """Print the best values of all functions and seeds."""
    import optuna
    import torch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    asked = json.loads(words[0])
    print(json.dumps({one.name: [best_of(one, asked["trials"], s) for s in range(asked["seeds"])] for one in ALL}))


if __name__ == "__main__":
    main(sys.argv[1:])
