"""Tests that need an NVIDIA GPU, and are skipped elsewhere: ``pytest tests/integration/gpu``."""
