"""Addresses at which a page asks ``browse``, and the server that answers at them."""
