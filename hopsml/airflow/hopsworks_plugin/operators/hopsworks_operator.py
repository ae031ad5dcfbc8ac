"""``HopsworksLaunchOperator`` where existing DAGs import it from."""

from hopsml.airflow.hopsworks import HopsworksLaunchOperator

__all__ = ["HopsworksLaunchOperator"]
