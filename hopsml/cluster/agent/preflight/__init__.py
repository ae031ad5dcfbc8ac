"""Preflight: measurements of an agent's slot before a run uses it."""
