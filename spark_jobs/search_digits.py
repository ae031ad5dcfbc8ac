"""Search step of airflow_dags/search_to_model.py: search, train once more with the best configuration, store a version."""

import argparse

from hopsml import Searchspace, experiment, model

NAME = "searched-digits"


def fit(hidden, alpha, lr, reporter=None):
    """Train scikit-learn's network on digits; return it with its accuracy on a third of the rows, reported each epoch."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16.0, labels, test_size=1 / 3, random_state=0)
    network = MLPClassifier((hidden,), alpha=alpha, learning_rate_init=lr, random_state=0)
    for epoch in range(1, 10):
        network.partial_fit(x, y, classes=np.arange(10))
        if reporter:
            reporter.broadcast(network.score(x_test, y_test), step=epoch)
    return network, float(network.score(x_test, y_test))


def trial(hidden, alpha, lr, reporter):
    """Return the accuracy of one configuration."""
    return {"accuracy": fit(hidden, alpha, lr, reporter)[1]}


def main(num_trials):
    """Search; then record a run that trains the best configuration and stores it as a version of the model."""
    space = Searchspace(
        hidden=("INTEGER", [8, 64]), alpha=("LOGUNIFORM", [1e-5, 1e-1]), lr=("LOGUNIFORM", [1e-4, 1e-1])
    )
    best = experiment.search(
        trial, space, searcher="tpe", stopper="asha", stopper_args={"min_step": 1, "max_step": 9, "reduction_factor": 3},
        num_trials=num_trials, direction="max", metric="accuracy", name=NAME,
    )  # fmt: skip
    with experiment.recorded(f"{NAME}-best", args=best.config) as run:
        network, accuracy = fit(**best.config)
        version = model.export(network, NAME, metrics={"accuracy": accuracy}, description=f"best of {best.run_id}")
        run.metrics.update(accuracy=accuracy, version=version.version, search=best.run_dir)
    print(run.json())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-trials", type=int, default=20)
    main(parser.parse_args().num_trials)
