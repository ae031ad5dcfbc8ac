"""Scenarios on a Kerberized cluster: `make test-secure`."""
