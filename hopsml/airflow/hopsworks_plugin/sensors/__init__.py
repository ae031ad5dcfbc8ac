"""Sensors of the predecessor's plugin."""
