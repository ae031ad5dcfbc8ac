"""Collective operations between processes: all-reduce, all-gather, broadcast, reduce-scatter, barrier."""

from hopsml.collective.group import Group

__all__ = ["Group"]
