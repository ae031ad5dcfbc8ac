"""Runs in the driver: the coordinator, what it is given, and whom it asks for executors."""
