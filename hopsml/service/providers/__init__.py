"""Providers of nodes, one per module; ``base.py`` defines their interface."""

from hopsml.service.providers.base import GivenNode, NodeProvider

__all__ = ["GivenNode", "NodeProvider"]
