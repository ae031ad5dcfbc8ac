"""Searchers and stoppers, one algorithm per file, and the models and numeric helpers that several of them use."""
