"""Runs in a worker whose group may change: state, commits, samples."""
