"""Benchmarks behind every figure that the project states, with measurements of peers: ``python -m benchmarks NAME``."""
