"""Flavors of models: saving and loading for one framework per file, which only that file imports."""
