"""Rendering of a job for an engine: spark-submit command lines, or manifests of Kubernetes' Spark operator.

Each task is a separate application with a driver (``hopsml.service.driver``) that starts the task's workers: thus each
task has executors of its size, on nodes with its label, and can be restarted alone.
"""
