"""Tuning inside workers: gradients of a training function, and the speed of reducing gradients like them."""
