"""What the peers run: the standard library and their own framework alone, so that every environment can run it."""
