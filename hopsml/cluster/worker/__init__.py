"""Code of the worker process around the user's function."""
