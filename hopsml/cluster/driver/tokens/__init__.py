"""Delegation tokens for the executors of a secure cluster: when to obtain them (pure), from where, and the thread."""
