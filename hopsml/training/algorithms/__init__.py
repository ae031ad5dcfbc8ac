"""Algorithms for joint training other than reducing the gradients of every step; pure."""
