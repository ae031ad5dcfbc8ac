"""Compatibility package with the names under which existing DAGs import the predecessor's Airflow plugin.

It is installed as a top-level package:

    from hopsworks_plugin.operators.hopsworks_operator import HopsworksLaunchOperator
    from hopsworks_plugin.sensors.hopsworks_sensor import HopsworksJobSuccessSensor
"""
