"""``python -m tools.features``: run all cases, write the page of the documentation, and print one line of JSON."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tools.features import table
from tools.features.play import play
from tools.features.table import Feature, Outcome, Row, Verdict

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = {"Keras": "tools.features.keras_features", "PyTorch": "tools.features.torch_features"}


def main(arguments: list[str]) -> int:
    """Return the exit status: 1 where a feature differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.features", description=__doc__)
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "features.md", help="where the page is written")
    parser.add_argument("--framework", choices=[*FRAMEWORKS], help="run only this framework; no page is written")
    parser.add_argument(
        "--only", default="", help="features whose name or group matches this regular expression; no page is written"
    )
    parser.add_argument("--implementation", help="run only this implementation; no page is written")
    given = parser.parse_args(arguments)
    os.environ.setdefault("HOPSML_PROFILE", "local")
    os.environ.setdefault("HOPSML_LOCAL_SLOTS", "3")
    rows = []
    for framework in [given.framework] if given.framework else FRAMEWORKS:
        for row in compare(framework, given.only, given.implementation):
            for name, verdict in row.verdicts.items():
                print(f"{framework}, {name}: {row.feature.name}: {verdict.state} {verdict.note}".rstrip(), flush=True)
            rows.append(row)
    if not (given.framework or given.only or given.implementation):
        given.page.write_text(table.page(rows), encoding="utf-8")
    counts = table.summary(rows)
    print(json.dumps(counts))
    return 1 if counts["differs"] else 0


def compare(framework: str, only: str = "", implementation: str | None = None) -> list[Row]:
    """Run a framework's cases in one process and in groups, under each implementation, and return the verdicts."""
    name = FRAMEWORKS[framework]
    module = importlib.import_module(name)
    features: list[Feature] = [one for one in module.FEATURES if re.search(only, f"{one.group}: {one.name}")]
    compared = [one for one in features if one.expected != "by design"]
    single = _outcomes(module, compared, 1, "")
    found: dict[str, dict[str, list[Outcome]]] = {}
    for one in module.IMPLEMENTATIONS if implementation is None else [implementation]:
        mine = [feature for feature in compared if one in (feature.implementations or (one,))]
        found[one] = {}
        for workers, together in _launches(mine):
            found[one] |= _outcomes(module, together, workers, one)
    return [Row(framework, feature, _verdicts(feature, single, found)) for feature in features]


def _verdicts(
    feature: Feature, single: dict[str, list[Outcome]], found: dict[str, dict[str, list[Outcome]]]
) -> dict[str, Verdict]:
    if feature.expected == "by design":
        return {implementation: table.judge(feature, Outcome(), []) for implementation in found}
    return {
        implementation: table.judge(feature, single[feature.name][0], outcomes[feature.name])
        for implementation, outcomes in found.items()
        if feature.name in outcomes
    }


def _launches(features: list[Feature]) -> Iterator[tuple[int, list[Feature]]]:
    """Yield the number of workers and the cases of each launch."""
    together = [feature for feature in features if not feature.apart]
    for workers, group in itertools.groupby(sorted(together, key=lambda one: one.workers), lambda one: one.workers):
        yield workers, list(group)
    yield from ((feature.workers, [feature]) for feature in features if feature.apart)


def _outcomes(
    module: ModuleType, features: list[Feature], workers: int, implementation: str
) -> dict[str, list[Outcome]]:
    """Return the outcomes of each case, in rank order. A failed launch is the outcome of each of its cases."""
    if not features:
        return {}
    args = {"module": module.__name__, "names": [feature.name for feature in features]}
    try:
        played = module.launch(play, args, workers, implementation)["outcomes"]
    except Exception as error:  # noqa: BLE001 a user's training raises anything
        failed = Outcome(error=f"the launch failed: {type(error).__name__}: {error}")
        return {feature.name: [failed] * workers for feature in features}
    return {name: [Outcome(**one) for one in outcomes] for name, outcomes in played.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
