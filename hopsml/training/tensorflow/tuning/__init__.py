"""In workers: what gradients a training function has, and how fast each way reduces gradients like them."""
