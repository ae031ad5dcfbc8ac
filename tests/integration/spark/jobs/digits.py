"""Program of test_digits.py: the job of spark_jobs/ with 1, 2 and 4 workers, and digests of all ranks' weights."""

import json
import sys

import hopsml
from spark_jobs import train_digits


def train(epochs):
    """The job itself, which besides reports a digest of this rank's final weights."""
    import hashlib

    models = []
    names = train_digits.train.__globals__  # shipped by value: not those of the module
    build = names["build_model"]

    def build_and_keep(lr):
        models.append(build(lr))
        return models[-1]

    names["build_model"] = build_and_keep
    result = train_digits.train(epochs=epochs)
    weights = b"".join(weight.tobytes() for weight in models[0].get_weights())
    hopsml.report(digest=hashlib.sha256(weights).hexdigest())
    return result


if __name__ == "__main__":
    for workers in map(int, sys.argv[2:]):
        run = hopsml.experiment.submit(train, args={"epochs": int(sys.argv[1])}, num_workers=workers, progress=False)
        accuracy = run.result().metrics["accuracy"]
        digests = [member["metrics"]["digest"] for member in run.status()["members"]]
        row = {"workers": workers, "accuracy": accuracy, "digests": digests, "run_dir": run.run_dir}
        print(json.dumps(row), flush=True)
