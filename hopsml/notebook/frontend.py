"""Detection of a notebook front end that can replace output, which the live display requires."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError

VARIABLE = Settings.progress.name
WISHES = ("", "auto", "display", "lines")
_KERNEL_SHELL, _KERNEL_PUBLISHER = "ZMQInteractiveShell", "ZMQDisplayPublisher"


def is_live() -> bool:
    """Return True if this process is a notebook's kernel whose display output reaches its front end.

    ``HOPSML_PROGRESS=lines`` selects plain lines there too, for consoles that cannot replace output.

    Raises:
        ArgumentError: ``HOPSML_PROGRESS`` has an unknown value.
    """
    shell = _shell()
    return shows_display(_classes(shell), _classes(getattr(shell, "display_pub", None)), SETTINGS.progress)


def shows_display(shell: Collection[str], publisher: Collection[str], wish: str) -> bool:
    """Return True if IPython's classes and the setting permit a live display.

    A terminal's IPython has another shell class, and so has the interpreter that Livy runs; within ``%%capture`` the
    publisher class is another one. Without a connected front end (nbconvert, a closed browser) the display is used as
    well: its output is stored in the notebook.

    Args:
        shell: names of the classes of IPython's shell.
        publisher: names of the classes of its display publisher.
        wish: value of ``HOPSML_PROGRESS``.

    Raises:
        ArgumentError: the value is unknown.
    """
    if wish not in WISHES:
        raise ArgumentError(f"{VARIABLE}={wish!r}: it must be one of auto, display, lines; unset it for auto")
    return wish != "lines" and _KERNEL_SHELL in shell and _KERNEL_PUBLISHER in publisher


def cell() -> int | None:
    """Return the number of the cell that is executed; None outside of IPython."""
    shell = _shell()
    return None if shell is None else int(shell.execution_count)


def _shell() -> Any:
    """Return IPython's shell if IPython is imported already and has one, else None."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None


def _classes(value: object) -> set[str]:
    """Return the names of a value's class and its base classes."""
    return {kind.__name__ for kind in type(value).__mro__}
