"""Searchers and stoppers, one algorithm a file, and the models and numbers that several of them use."""
