"""Fixture of this folder: the command line."""

from __future__ import annotations

from tests.helpers.command_line import cli

__all__ = ["cli"]
