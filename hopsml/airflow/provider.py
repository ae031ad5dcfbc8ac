"""Description of this package for Airflow (entry point ``apache_airflow_provider``)."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return this package's description by Airflow's schema for providers."""
    from hopsml import __version__

    name = "hopsml"
    return {
        "package-name": "hopsml-spark",
        "name": name,
        "description": "Distributed training on Spark executors, as Airflow tasks",
        "versions": [__version__],
        "integrations": [{"integration-name": name, "external-doc-url": "", "tags": ["service"]}],
        "operators": [
            {"integration-name": name, "python-modules": ["hopsml.airflow.operators", "hopsml.airflow.hopsworks"]}
        ],
        "sensors": [
            {"integration-name": name, "python-modules": ["hopsml.airflow.sensors", "hopsml.airflow.hopsworks"]}
        ],
        "triggers": [{"integration-name": name, "python-modules": ["hopsml.airflow.triggers"]}],
    }
