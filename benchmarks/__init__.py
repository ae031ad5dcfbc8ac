"""Every figure that the project claims, with the peers beside it: ``python -m benchmarks NAME``."""
