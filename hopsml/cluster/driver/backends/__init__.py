"""Backends of the driver, which start and end agents: Spark, or processes of this machine."""
