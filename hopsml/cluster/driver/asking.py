"""Asking the backend for agents, on a thread that may block; its answers go to the coordinator's loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

from hopsml.cluster.agent.agent import Bootstrap
from hopsml.cluster.driver.backends.base import AskEnded, Backend, SlotEnded


def submit(
    backend: Backend,
    bootstrap: Bootstrap,
    count: int,
    loop: asyncio.AbstractEventLoop,
    on_end: AskEnded,
    on_slot_end: SlotEnded,
) -> None:
    """``on_end`` is called on the loop once no agent of this ask is left to come, with what went wrong; ``on_slot_end`` for
    each that has gone before the others.
    """

    def call(function: Callable[..., None], *arguments: object) -> None:
        try:
            loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # the coordinator is closed: nobody asks any more

    ended = functools.partial(call, on_end)
    try:
        backend.submit(bootstrap, count, ended, functools.partial(call, on_slot_end))
    except Exception as error:  # noqa: BLE001 whatever Spark throws is the waiting runs' to know
        ended(bootstrap.ask, f"{type(error).__name__}: {error}")
