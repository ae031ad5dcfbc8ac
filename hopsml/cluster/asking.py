"""Asking the backend for agents, on a thread that may block; its answers go to the coordinator's loop."""

from __future__ import annotations

import asyncio

from hopsml.cluster.agent import Bootstrap
from hopsml.cluster.backends.base import AskEnded, Backend


def submit(
    backend: Backend, bootstrap: Bootstrap, count: int, loop: asyncio.AbstractEventLoop, on_end: AskEnded
) -> None:
    """``on_end`` is called on the loop once no agent of this ask is left to come, with what went wrong."""

    def ended(ask: int, problem: str) -> None:
        try:
            loop.call_soon_threadsafe(on_end, ask, problem)
        except RuntimeError:
            pass  # the coordinator is closed: nobody asks any more

    try:
        backend.submit(bootstrap, count, ended)
    except Exception as error:  # noqa: BLE001 whatever Spark throws is the waiting runs' to know
        ended(bootstrap.ask, f"{type(error).__name__}: {error}")
