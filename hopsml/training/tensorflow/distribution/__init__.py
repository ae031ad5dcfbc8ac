"""Distribution strategies for TensorFlow, and the reduction of gradients that they do."""
