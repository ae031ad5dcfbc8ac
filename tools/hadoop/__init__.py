"""A real HDFS and YARN on this machine: every daemon a process of its own, from Maven artifacts.

``python -m tools.hadoop start`` for a person; ``tools.hadoop.cluster.Cluster`` for tests and demos.
"""
