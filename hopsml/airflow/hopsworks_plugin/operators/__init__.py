"""Operators of the predecessor's plugin."""
