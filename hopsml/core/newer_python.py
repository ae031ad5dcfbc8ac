"""Names that Python 3.11 added to the standard library, for Python 3.10 as well.

Python 3.11 made the errors of exceeded time limits of ``asyncio`` and ``concurrent.futures`` the builtin
``TimeoutError``. The functions of asyncio here raise that one under 3.10, too, so that ``except TimeoutError`` and
``except OSError`` mean the same; around ``Future.result(timeout)``, catch ``FUTURE_TIMEOUTS``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import enum
import os
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

FUTURE_TIMEOUTS = (TimeoutError, concurrent.futures.TimeoutError)

_Result = TypeVar("_Result")


def add_note(error: BaseException, note: str) -> None:
    """Add a line to what the traceback of an error shows; without effect before Python 3.11."""
    if sys.version_info >= (3, 11):
        error.add_note(note)


_OWN_PATH = "import sys\nif sys.path[:1] == ['']:\n    del sys.path[0]\n"


def code_arguments(code: str) -> list[str]:
    """Return the interpreter's arguments that run ``code`` without modules of the working directory.

    They are for any supported Python, so that another interpreter than this one can be given them.
    """
    return ["-c", _OWN_PATH + code]


def module_arguments(module: str) -> list[str]:
    """Return this interpreter's arguments that run a module as a program.

    Modules in the working directory, where other users may put files, are not imported (``-P`` since Python 3.11).
    """
    return [*_RUN_MODULE, module]


_RUN_MODULE_3_10 = code_arguments(
    "import runpy\nrunpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)\n"
)

if sys.version_info >= (3, 11):
    from asyncio import Runner as AsyncioRunner
    from asyncio import timeout as asyncio_timeout
    from asyncio import timeout_at as asyncio_timeout_at
    from asyncio import wait_for as asyncio_wait_for
    from datetime import UTC
    from enum import StrEnum
    from typing import Self

    OWN_PROCESS_GROUP: dict[str, Any] = {"process_group": 0}
    _RUN_MODULE = ["-P", "-m"]
else:
    import async_timeout
    from backports.asyncio.runner import Runner as AsyncioRunner
    from typing_extensions import Self

    UTC = datetime.timezone.utc
    _RUN_MODULE = _RUN_MODULE_3_10

    @asynccontextmanager
    async def asyncio_timeout(delay: float | None) -> AsyncIterator[None]:
        """Limit the block to ``delay`` seconds; TimeoutError when they are over."""
        try:
            async with async_timeout.timeout(delay):
                yield
        except asyncio.TimeoutError as error:
            raise TimeoutError(*error.args) from error

    @asynccontextmanager
    async def asyncio_timeout_at(when: float | None) -> AsyncIterator[None]:
        """Limit the block until the loop's clock shows ``when``; TimeoutError then."""
        try:
            async with async_timeout.timeout_at(when):
                yield
        except asyncio.TimeoutError as error:
            raise TimeoutError(*error.args) from error

    async def asyncio_wait_for(awaitable: Awaitable[_Result], timeout: float | None) -> _Result:
        """Return the awaited result; TimeoutError after ``timeout`` seconds."""
        try:
            return await asyncio.wait_for(awaitable, timeout)
        except asyncio.TimeoutError as error:
            raise TimeoutError(*error.args) from error

    class StrEnum(str, enum.Enum):
        """Members that are strings: ``str()`` and ``format()`` give the value."""

        def __str__(self) -> str:
            return str(self.value)

        def __format__(self, format_spec: str) -> str:
            return format(str(self.value), format_spec)

    # For Popen: the child leads a process group of its own in the same session, so that Ctrl-C does not reach it.
    OWN_PROCESS_GROUP: dict[str, Any] = {"preexec_fn": os.setpgrp}

__all__ = [
    "FUTURE_TIMEOUTS",
    "OWN_PROCESS_GROUP",
    "UTC",
    "AsyncioRunner",
    "Self",
    "StrEnum",
    "add_note",
    "asyncio_timeout",
    "asyncio_timeout_at",
    "asyncio_wait_for",
    "code_arguments",
    "module_arguments",
]
