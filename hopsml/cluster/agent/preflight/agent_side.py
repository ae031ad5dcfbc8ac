"""What an agent does for the preflight: it opens its probe door, measures itself once, and exchanges bytes when asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from hopsml.cluster.agent.preflight.measure import measure
from hopsml.cluster.agent.preflight.probe import ProbeDoor, probe
from hopsml.cluster.shared.protocol import Message, ProbePeer


class SelfCheck:
    """The preflight's part of an agent; on its event loop, beside its fork server's import."""

    def __init__(self, folder: Path, token: str, send: Callable[[Message], None]) -> None:
        self._folder, self._token, self._send = folder, token, send
        self._door = ProbeDoor(token)

    async def tell(self, host: str, gpu_indices: tuple[int, ...]) -> None:
        """Open the probe door on ``host``, measure this slot, and send the figures."""
        try:
            await self._door.open(host)
        except OSError:
            pass  # its neighbours will find out, and name it
        self._send(await asyncio.to_thread(measure, self._folder, host, self._door.port, gpu_indices))

    async def meet(self, message: ProbePeer) -> None:
        """Exchange bytes with the agent that the message names, and send what came of it."""
        self._send(await probe(message.agent_id, message.address, self._token))

    def close(self) -> None:
        """Close the probe door."""
        self._door.close()
