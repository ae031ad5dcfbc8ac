"""What is handed to an engine to run a job: spark-submit's command lines, or manifests of Kubernetes' Spark operator.

Each task is an application of its own, with a driver (``hopsml.service.driver``) that starts the task's workers: so
every task has executors of its own size, on nodes of its own label, and can be started anew alone.
"""
