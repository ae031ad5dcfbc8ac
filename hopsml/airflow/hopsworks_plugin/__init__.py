"""The predecessor's plugin for Airflow, under the names by which existing DAGs import it; installed as a package of its own.

from hopsworks_plugin.operators.hopsworks_operator import HopsworksLaunchOperator
from hopsworks_plugin.sensors.hopsworks_sensor import HopsworksJobSuccessSensor
"""
