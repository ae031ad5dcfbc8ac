"""Keras under strategies over several workers: repairs, state of layers, saving, optimizers for large batches."""
