"""All fuzz targets, by name."""

from __future__ import annotations

from tools.fuzz import file_targets, message_targets

TARGETS = {**message_targets.TARGETS, **file_targets.TARGETS}
