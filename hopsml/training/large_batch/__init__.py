"""Training with large batches: learning rates, schedules, layer-wise optimizers, and choice of the batch size."""
