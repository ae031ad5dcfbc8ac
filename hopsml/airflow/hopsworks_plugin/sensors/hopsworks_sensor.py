"""``HopsworksJobSuccessSensor`` where existing DAGs import it from."""

from hopsml.airflow.hopsworks import HopsworksJobSuccessSensor

__all__ = ["HopsworksJobSuccessSensor"]
