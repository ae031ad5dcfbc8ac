"""Support of PyTorch inside a worker: process group, gradient averaging, state, data, optimizers."""
