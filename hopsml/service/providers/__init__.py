"""Where nodes come from: one provider a file. ``base.py`` has what is asked of one."""

from hopsml.service.providers.base import GivenNode, NodeProvider

__all__ = ["GivenNode", "NodeProvider"]
