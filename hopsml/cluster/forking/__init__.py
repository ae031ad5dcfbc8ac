"""Runs in fork servers and zygotes, and in who looks after them."""
