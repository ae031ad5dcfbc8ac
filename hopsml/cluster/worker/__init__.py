"""Runs in the worker's process, around the user's function."""
