"""PyTorch in a worker: its process group, its gradients, its state. Alone imports torch, inside functions."""
