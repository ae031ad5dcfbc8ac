"""Programs that the peers run.

They use the standard library and their own framework only, so that they run in every environment.
"""
