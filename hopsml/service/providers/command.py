"""Nodes from an executable of the site, called with ``list``, ``launch``, ``drain``, ``recall`` or ``terminate``.

It reads one JSON object, and ``list`` prints one:

    launch              <- {"group": "gpu", "count": 2, "jobs": ["resnet-17"]}
    drain, recall, terminate  <- {"id": "a1", "group": "gpu", "hosts": ["node7"]}
    list                -> {"nodes": [{"id": "a1", "group": "gpu", "hosts": ["node7"], "launched_s": 1795767000.0,
                                       "state": "up", "warned": false}]}

Draining by YARN is here, too: hosts in the ResourceManager's exclude file, which is read again after each change.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hopsml.errors import ProviderError
from hopsml.service.providers import ProviderNode

SHOWN = 500  # most characters of the executable's output in messages


class ListedNode(BaseModel):
    """Node in the output of ``list``.

    Its state is "draining" after ``drain``, "ending" after ``terminate``, until it is not listed.
    """

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=200)
    group: str = Field(min_length=1, max_length=63)
    hosts: tuple[str, ...] = ()
    launched_s: float = Field(ge=0)
    state: Literal["up", "draining", "ending"] = "up"
    warned: bool = False


class ListAnswer(BaseModel):
    """Output of the executable's ``list``."""

    model_config = ConfigDict(extra="forbid")

    nodes: tuple[ListedNode, ...]


class CommandProvider:
    """Provider that calls an executable.

    Calls that run longer than ``within_s`` seconds are killed, and fail. ``command`` is the executable with its first
    arguments.
    """

    def __init__(self, command: Sequence[str], within_s: float) -> None:
        self._command, self._within_s = tuple(command), within_s
        self._running: subprocess.Popen[str] | None = None
        self._is_closed = False

    def list(self) -> Sequence[ProviderNode]:
        """Return the nodes that the executable lists. Raises ProviderError for invalid output."""
        printed = self._call("list", {})
        try:
            listed = ListAnswer.model_validate_json(printed)
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
            raise ProviderError(
                f"{self._command[0]} list printed {printed[:SHOWN]!r}: {said}; see the how-to"
            ) from error
        return [
            ProviderNode(
                node.id, node.group, node.hosts, node.launched_s,
                is_draining=node.state == "draining", is_ending=node.state == "ending", is_warned=node.warned,
            )
            for node in listed.nodes
        ]  # fmt: skip

    def launch(self, group: str, count: int, jobs: Sequence[str]) -> None:
        """Request nodes from the executable, which may return before they boot but must list them."""
        self._call("launch", {"group": group, "count": count, "jobs": list(jobs)})

    def drain(self, node: ProviderNode) -> None:
        """Report a node as draining to the executable, which is called even if there is nothing to do."""
        self._call("drain", _named(node))

    def recall(self, node: ProviderNode) -> None:
        """Report a node as not draining any more to the executable."""
        self._call("recall", _named(node))

    def terminate(self, node: ProviderNode) -> None:
        """Request the termination of a node."""
        self._call("terminate", _named(node))

    def close(self) -> None:
        """Kill the executable that is running, or about to start."""
        self._is_closed = True
        if (process := self._running) is not None:
            _kill(process)

    def _call(self, verb: str, told: Mapping[str, object]) -> str:
        """Run the executable with a JSON object as input; return its output. Raises ProviderError."""
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
        if self._is_closed:  # closed by another thread, perhaps before the process existed
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
    """Kill a running process with its process group; processes that it leaves after its own end are not killed."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _named(node: ProviderNode) -> dict[str, object]:
    """Return the JSON object that identifies a node."""
    return {"id": node.id, "group": node.group, "hosts": list(node.hosts)}


class YarnExclusion:
    """Hosts that YARN excludes.

    ``file`` is that of yarn.resourcemanager.nodes.exclude-path, which must be writable from here; ``refresh`` is the
    command that makes the ResourceManager read it.
    """

    def __init__(self, file: Path, refresh: Sequence[str], within_s: float) -> None:
        self._file, self._refresh, self._within_s = file, tuple(refresh), within_s
        # Hosts that the ResourceManager has read from the file; None if unknown: the process before this one may have
        # ended between writing the file and the refresh, or another server may have written it.
        self._told: list[str] | None = None

    def exclude(self, host: str) -> None:
        """Exclude a host: YARN starts no more containers there, and running ones continue."""
        self._change(lambda hosts: hosts if host in hosts else [*hosts, host])

    def admit(self, host: str) -> None:
        """Admit a host again, also after its node has ended, as another node may get its name."""
        self._change(lambda hosts: [each for each in hosts if each != host])

    def _change(self, change: Callable[[list[str]], list[str]]) -> None:
        """Change the list of hosts in the file, and refresh the ResourceManager. Raises ProviderError."""
        try:
            before = self._file.read_text().split() if self._file.exists() else []
            after = change(before)
            if after == before == self._told:
                return
            self._told = None
            fresh = self._file.with_name(f"{self._file.name}.new")
            fresh.write_text("".join(f"{host}\n" for host in after))
            os.replace(fresh, self._file)
            done = subprocess.run(
                self._refresh, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=self._within_s
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProviderError(
                f"YARN's exclude file {self._file}: {error}; correct `drain` of the nodes file"
            ) from error
        if done.returncode:
            raise ProviderError(
                f"{self._refresh[0]}: exit status {done.returncode}: {done.stderr.strip()[-SHOWN:]}; correct `refresh`"
            )
        self._told = after
