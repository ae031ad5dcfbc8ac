"""Runs around the user's function, in its process."""
