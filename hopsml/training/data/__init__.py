"""Data that a worker reads by itself: which rows, in what order, from where, as what."""
