"""Runs in an agent: the body of a Spark task, or a process of this machine."""
