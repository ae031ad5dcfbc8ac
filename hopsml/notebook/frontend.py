"""Whether a notebook is looking: the live display is for a front end that can replace what it has shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Any

from hopsml.errors import ArgumentError

VARIABLE = "HOPSML_PROGRESS"
WISHES = ("", "auto", "display", "lines")
_KERNEL_SHELL, _KERNEL_PUBLISHER = "ZMQInteractiveShell", "ZMQDisplayPublisher"


def is_live() -> bool:
    """Whether this process is a notebook's kernel whose display goes to its front end.

    ``HOPSML_PROGRESS=lines`` asks for plain lines there too, for consoles that cannot replace what they have shown.
    Raises ArgumentError for a value that is not known.
    """
    shell = _shell()
    return shows_display(_classes(shell), _classes(getattr(shell, "display_pub", None)), os.environ.get(VARIABLE, ""))


def shows_display(shell: Collection[str], publisher: Collection[str], wish: str) -> bool:
    """The decision, from the names of the classes of IPython's shell and of its publisher.

    A terminal's IPython has another shell, and so has the interpreter behind Livy; within ``%%capture`` the publisher is
    another. A front end that is not there (nbconvert, a closed browser) makes no difference: what is shown is kept.
    """
    if wish not in WISHES:
        raise ArgumentError(f"{VARIABLE}={wish!r}: it must be one of auto, display, lines; unset it for auto")
    return wish != "lines" and _KERNEL_SHELL in shell and _KERNEL_PUBLISHER in publisher


def cell() -> int | None:
    """The number of the cell that runs now; None outside of IPython."""
    shell = _shell()
    return None if shell is None else int(shell.execution_count)


def _shell() -> Any:
    """IPython's shell where there is one; IPython is not imported for it."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None


def _classes(value: object) -> set[str]:
    return {kind.__name__ for kind in type(value).__mro__}
