"""Failures of real clusters, injected into trainings."""
