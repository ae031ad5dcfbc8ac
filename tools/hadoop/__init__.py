"""HDFS and YARN on this machine: every daemon is a separate process, from Maven artifacts.

``python -m tools.hadoop start`` is the command line; tests and demos use ``tools.hadoop.cluster.Cluster``.
"""
