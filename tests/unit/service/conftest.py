"""Fixtures of this folder: a project for runs, a service without a socket."""

from __future__ import annotations

from tests.helpers.service.project import project
from tests.helpers.service.served import empty, served

__all__ = ["empty", "project", "served"]
