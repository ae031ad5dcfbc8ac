"""Data sets read by the workers themselves: formats, row order, sharding, caching, and conversion to arrays."""
