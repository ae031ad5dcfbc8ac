"""Step 5 of airflow_dags/digits_pipeline.py: serve the version of step 4 by REST, on the machine of Airflow's worker.

A running server switches to the version without a failed request; otherwise a new one is started, which outlives the
step.
"""

import argparse

from hopsml import experiment, model, serving


def main(name, version):
    """Serve a version as a recorded run, and set the alias "production" to it."""
    with experiment.recorded(f"{name}-serve", args={"name": name, "version": version}) as run:
        is_running = serving.exists(name) and serving.status(name).state == "Running"
        status = (serving.roll if is_running else serving.start)(name, version)
        model.set_alias(name, version, "production")  # once it serves requests
        run.metrics.update(url=status.url, version=status.version, rolled=is_running)
    print(run.json())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", type=int, required=True)
    asked = parser.parse_args()
    main(asked.name, asked.version)
