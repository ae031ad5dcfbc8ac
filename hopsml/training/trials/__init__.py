"""Search trials inside a worker: running them, their reports, checkpoints and files."""
