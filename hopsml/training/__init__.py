"""Code that runs in workers: frameworks, elastic training, data, trials, large batches."""
