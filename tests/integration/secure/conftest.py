"""Fixtures of the scenarios on Kerberized clusters."""

from tests.helpers.scenarios import measured

__all__ = ["measured"]
