"""Hands the script's ``logging`` configuration on to its workers, which do not execute the script's top level.

Where the root logger writes to a stream (``logging.basicConfig(level=logging.INFO)``, say), the workers' root logger writes
in the same form what has the same level. Files, other handlers and the levels of single loggers stay the driver's. Without
such a stream workers keep Python's default.
"""

from __future__ import annotations

import json
import logging
import os
import sys

VARIABLE = "HOPSML_LOGGING"
_STYLES = {logging.PercentStyle: "%", logging.StrFormatStyle: "{", logging.StringTemplateStyle: "$"}


def of(root: logging.Logger) -> str:
    """What a worker needs to log like this root logger, as the text of ``VARIABLE``; "" if it writes to no stream."""
    handler = _to_a_stream(root)
    if handler is None:
        return ""
    written = handler.formatter
    if type(written) is not logging.Formatter or type(written._style) not in _STYLES:  # one's own, or none
        written = logging.Formatter()
    return json.dumps(
        {
            "level": root.level,
            "from": handler.level,
            "format": written._fmt,
            "dates": written.datefmt,
            "style": _STYLES[type(written._style)],
            "stdout": getattr(handler, "stream", None) is sys.stdout,
        }
    )


def attach() -> None:
    """Give this worker's root logger the level and format of the driver's; called before the user's function."""
    if told := os.environ.get(VARIABLE):
        follow(told, logging.getLogger())


def follow(told: str, root: logging.Logger) -> None:
    """Give this root logger the level, format and stream that ``told`` describes, unless it writes to a stream already."""
    if _to_a_stream(root) is not None:
        return
    wanted = json.loads(told)
    handler = logging.StreamHandler(sys.stdout if wanted["stdout"] else sys.stderr)
    handler.setLevel(wanted["from"])
    handler.setFormatter(logging.Formatter(wanted["format"], wanted["dates"], wanted["style"], False))
    root.addHandler(handler)
    root.setLevel(wanted["level"])


def _to_a_stream(root: logging.Logger) -> logging.Handler | None:
    """The first handler that is a plain StreamHandler; classes derived from it write elsewhere."""
    return next((one for one in root.handlers if type(one) is logging.StreamHandler), None)
