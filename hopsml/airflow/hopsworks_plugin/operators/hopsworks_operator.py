"""``HopsworksLaunchOperator`` at the predecessor's import path."""

from hopsml.airflow.hopsworks import HopsworksLaunchOperator

__all__ = ["HopsworksLaunchOperator"]
