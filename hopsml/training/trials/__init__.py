"""Runs in the workers of a search: lanes, runners, trials."""
