"""Transfer of the driver script's ``logging`` configuration to its workers, which do not run the script's top level.

If the root logger writes to a stream (as after ``logging.basicConfig(level=logging.INFO)``), the workers' root logger
writes records of the same level in the same format. Files, other handlers and the levels of individual loggers apply
to the driver only. Without such a stream, workers use Python's default.
"""

from __future__ import annotations

import json
import logging
import os
import sys

VARIABLE = "HOPSML_LOGGING"
_STYLES = {logging.PercentStyle: "%", logging.StrFormatStyle: "{", logging.StringTemplateStyle: "$"}


def of(root: logging.Logger) -> str:
    """Return the configuration of a root logger as the text of ``VARIABLE``; "" if it writes to no stream."""
    handler = _to_a_stream(root)
    if handler is None:
        return ""
    written = handler.formatter
    # A custom formatter, or no formatter.
    if type(written) is not logging.Formatter or type(written._style) not in _STYLES:
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
    """Give a root logger the level, format and stream described by ``told``, unless it writes to a stream already.

    Args:
        told: text made by ``of``.
        root: logger to configure.
    """
    if _to_a_stream(root) is not None:
        return
    wanted = json.loads(told)
    handler = logging.StreamHandler(sys.stdout if wanted["stdout"] else sys.stderr)
    handler.setLevel(wanted["from"])
    handler.setFormatter(logging.Formatter(wanted["format"], wanted["dates"], wanted["style"], False))
    root.addHandler(handler)
    root.setLevel(wanted["level"])


def _to_a_stream(root: logging.Logger) -> logging.Handler | None:
    """Return the first handler that is a plain StreamHandler; classes derived from it write elsewhere."""
    return next((one for one in root.handlers if type(one) is logging.StreamHandler), None)
