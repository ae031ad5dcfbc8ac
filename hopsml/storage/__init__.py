"""File systems by URL, the run directory, checkpoints and the background mirror."""
