"""Elastic training inside a worker: state, commits, and samplers for a group that may change."""
