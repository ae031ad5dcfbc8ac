"""Counter of executed Python operations, which, unlike time, is the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import hopsml

_OURS = str(Path(hopsml.__file__).parent)


def operations(call: Callable[[], object]) -> int:
    """Return the number of hopsml's bytecodes that run within the call, on this thread."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
