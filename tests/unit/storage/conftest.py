"""Fixtures of this folder: a clean environment, no process left, a full disk."""

from __future__ import annotations

from tests.helpers.storage.fixtures import _clean_environment, _no_process_left, full_disk

__all__ = ["_clean_environment", "_no_process_left", "full_disk"]
