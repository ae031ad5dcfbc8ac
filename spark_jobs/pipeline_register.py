"""Step 4 of airflow_dags/digits_pipeline.py: register a model that is good enough as the next version.

It needs no Spark, and runs on the machine of Airflow's worker.
"""

import argparse
import json

from hopsml import experiment, hdfs, model


def main(name, model_run, evaluation_run, least_accuracy):
    """Register the model as a recorded run; exit with an error if its accuracy is too low."""
    accuracy = json.loads(hdfs.load(f"{evaluation_run}/.outputs.json"))["accuracy"]
    with experiment.recorded(f"{name}-register", args={"model": model_run, "evaluation": evaluation_run}) as run:
        if accuracy < least_accuracy:
            raise SystemExit(
                f"{model_run} has an accuracy of {accuracy:.4f}; {least_accuracy} is asked for: not registered"
            )
        # Its lineage is the run that wrote the files, with that run's code and data.
        metrics, why = {"accuracy": accuracy}, f"evaluated by {evaluation_run}"
        version = model.export(f"{model_run}/export/model", name, metrics=metrics, description=why)
        run.metrics.update(model=name, version=version.version, accuracy=accuracy)
    print(run.json())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--model", required=True, help="run directory of pipeline_train.py")
    parser.add_argument("--evaluation", required=True, help="run directory of pipeline_evaluate.py")
    parser.add_argument("--least-accuracy", type=float, default=0.95)
    asked = parser.parse_args()
    main(asked.name, asked.model, asked.evaluation, asked.least_accuracy)
