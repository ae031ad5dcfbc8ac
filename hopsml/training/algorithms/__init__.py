"""Ways for workers to train one model together, other than reducing every step's gradients; pure."""
