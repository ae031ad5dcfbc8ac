"""``HopsworksJobSuccessSensor`` at the predecessor's import path."""

from hopsml.airflow.hopsworks import HopsworksJobSuccessSensor

__all__ = ["HopsworksJobSuccessSensor"]
