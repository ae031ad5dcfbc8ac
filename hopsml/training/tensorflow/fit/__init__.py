"""Training loops and ``fit``: their data, their callbacks, commits and checkpoints, in groups of fixed or changing size."""
