"""What only a machine with an NVIDIA GPU can show; elsewhere these are skipped. ``pytest tests/gpu`` there runs them."""
