"""Training with large batches: what a recipe that was tuned at one batch size becomes at another; pure."""
