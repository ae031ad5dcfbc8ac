"""Nodes by an executable of the site's own: called with ``list``, ``launch``, ``drain``, ``recall`` or ``terminate``.

It reads one object of JSON, and ``list`` prints one:

    launch              <- {"group": "gpu", "count": 2, "jobs": ["resnet-17"]}
    drain, recall, terminate  <- {"id": "a1", "group": "gpu", "hosts": ["node7"]}
    list                -> {"nodes": [{"id": "a1", "group": "gpu", "hosts": ["node7"], "launched_s": 1795767000.0,
                                       "state": "up", "warned": false}]}
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hopsml.errors import ProviderError
from hopsml.service.providers.base import GivenNode

SHOWN = 500  # characters of what it said


class ListedNode(BaseModel):
    """``state``: draining from ``drain`` on, ending from ``terminate`` on, until it is not listed any more."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=200)
    group: str = Field(min_length=1, max_length=63)
    hosts: tuple[str, ...] = ()
    launched_s: float = Field(ge=0)
    state: Literal["up", "draining", "ending"] = "up"
    warned: bool = False


class ListAnswer(BaseModel):
    """What ``list`` prints."""

    model_config = ConfigDict(extra="forbid")

    nodes: tuple[ListedNode, ...]


class CommandProvider:
    """``command``: the executable with its first arguments. What runs longer than ``within_s`` is killed, and has failed."""

    def __init__(self, command: Sequence[str], within_s: float) -> None:
        self._command, self._within_s = tuple(command), within_s
        self._running: subprocess.Popen[str] | None = None
        self._is_closed = False

    def list(self) -> Sequence[GivenNode]:
        """As it prints them."""
        printed = self._call("list", {})
        try:
            listed = ListAnswer.model_validate_json(printed)
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
            raise ProviderError(
                f"{self._command[0]} list printed {printed[:SHOWN]!r}: {said}; see the how-to"
            ) from error
        return [
            GivenNode(
                node.id, node.group, node.hosts, node.launched_s,
                is_draining=node.state == "draining", is_ending=node.state == "ending", is_warned=node.warned,
            )
            for node in listed.nodes
        ]  # fmt: skip

    def launch(self, group: str, count: int, jobs: Sequence[str]) -> None:
        """It may return before they boot; ``list`` has to have them."""
        self._call("launch", {"group": group, "count": count, "jobs": list(jobs)})

    def drain(self, node: GivenNode) -> None:
        """Called as well where nothing has to be done for it."""
        self._call("drain", _named(node))

    def recall(self, node: GivenNode) -> None:
        """Undo ``drain``."""
        self._call("recall", _named(node))

    def terminate(self, node: GivenNode) -> None:
        """End it."""
        self._call("terminate", _named(node))

    def close(self) -> None:
        """Kill what runs, or is about to."""
        self._is_closed = True
        if (process := self._running) is not None:
            _kill(process)

    def _call(self, verb: str, told: Mapping[str, object]) -> str:
        try:
            process = subprocess.Popen(
                [*self._command, verb],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ProviderError(f"{self._command[0]} cannot be run: {error.strerror}; correct `command`") from error
        self._running = process
        if self._is_closed:  # by another thread, which may have looked before it was there
            _kill(process)
        try:
            printed, complained = process.communicate(json.dumps(told), self._within_s)
        except subprocess.TimeoutExpired as expired:
            raise ProviderError(
                f"{self._command[0]} {verb} did not end within {self._within_s:g} s, and was killed; let it return before "
                "nodes boot, or raise `within`"
            ) from expired
        finally:
            self._running = None
            _kill(process)
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        if process.returncode:
            raise ProviderError(
                f"{self._command[0]} {verb} failed: exit status {process.returncode}: {complained.strip()[-SHOWN:]}"
            )
        return printed


def _kill(process: subprocess.Popen[str]) -> None:
    """With what it has started; not what it leaves running when it ends by itself."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _named(node: GivenNode) -> dict[str, object]:
    return {"id": node.id, "group": node.group, "hosts": list(node.hosts)}
