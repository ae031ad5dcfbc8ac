"""Step 4 of airflow_dags/digits_pipeline.py: a model that is good enough becomes the next version in Models/.

Needs no Spark: it runs where Airflow does.
"""

import argparse
import json
import time

from hopsml import experiment, hdfs


def next_version(folder):
    """One above the highest; a version is a number."""
    taken = [path.rsplit("/", 1)[1] for path in hdfs.ls(folder)] if hdfs.exists(folder) else []
    return max((int(name) for name in taken if name.isdigit()), default=0) + 1


def main(name, model_run, evaluation_run, least_accuracy):
    outputs = json.loads(hdfs.load(f"{evaluation_run}/.outputs.json"))
    accuracy = outputs["accuracy"]
    with experiment.recorded(f"{name}-register", args={"model": model_run, "evaluation": evaluation_run}) as run:
        if accuracy < least_accuracy:
            raise SystemExit(
                f"{model_run} has an accuracy of {accuracy:.4f}; {least_accuracy} is asked for: not registered"
            )
        folder = f"{hdfs.project_path()}Models/{name}"
        version = next_version(folder)
        target = f"{folder}/{version}"
        hdfs.mkdir(target)
        hdfs.cp(f"{model_run}/export/model", f"{target}/model")
        card = {
            "name": name,
            "version": version,
            "metrics": {"accuracy": accuracy},
            "model_run": model_run,
            "evaluation_run": evaluation_run,
            "created": time.time(),
        }
        hdfs.dump(json.dumps(card, indent=1), f"{target}/model.json")  # last: with it the version is complete
        run.metrics.update(version=version, model=target, accuracy=accuracy)
    print(run.json())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--model", required=True, help="run directory of pipeline_train.py")
    parser.add_argument("--evaluation", required=True, help="run directory of pipeline_evaluate.py")
    parser.add_argument("--least-accuracy", type=float, default=0.95)
    asked = parser.parse_args()
    main(asked.name, asked.model, asked.evaluation, asked.least_accuracy)
