"""Tests of subprocess agents while one is running and the request is not complete yet."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.local import LocalBackend
from hopsml.cluster.shared.tls import make_identity
from tests.helpers.cluster.workloads import WAIT_S

pytestmark = pytest.mark.fast


@pytest.fixture
def bootstrap() -> Iterator[Bootstrap]:
    """Yield the bootstrap data of a coordinator that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield Bootstrap(
            request_id=1, addresses=(silent.getsockname()[:2],), token="t", certificate=make_identity().certificate,
            preload=(), lease_s=600.0, sys_path=(),
        )  # fmt: skip


@dataclass
class Scene:
    """A backend whose starts are remembered, and can be disturbed."""

    monkeypatch: pytest.MonkeyPatch
    backend: LocalBackend = field(default_factory=lambda: LocalBackend(3))
    started: list[Any] = field(default_factory=list)
    ended: queue.SimpleQueue[tuple[int, str]] = field(default_factory=queue.SimpleQueue)

    def submit(
        self,
        bootstrap: Bootstrap,
        before: Callable[[int], None] = lambda index: None,
        after: Callable[[int], None] = lambda index: None,
    ) -> tuple[int, str]:
        """Request three agents and return the reported end; ``before`` and ``behind`` run around the start of each."""
        start = LocalBackend._start

        def start_with_callbacks(bootstrap: Bootstrap, index: int) -> Any:
            before(index)
            self.started.append(start(bootstrap, index))
            after(index)
            return self.started[-1]

        self.monkeypatch.setattr(LocalBackend, "_start", staticmethod(start_with_callbacks))
        self.backend.submit(bootstrap, 3, lambda *ended: self.ended.put(ended), lambda *_: None)
        return self.ended.get(timeout=WAIT_S)


def test_cancelled_request_leaves_no_agent_process(monkeypatch: pytest.MonkeyPatch, bootstrap: Bootstrap) -> None:
    scene = Scene(monkeypatch)
    try:
        end = scene.submit(bootstrap, after=lambda index: scene.backend.cancel(1) if index == 1 else None)
        assert end == (1, "") and len(scene.started) == 2
        assert all(process.returncode is not None for process in scene.started)
    finally:
        for process in scene.started:
            process.kill()
        scene.backend.close()


def test_failed_start_of_an_agent_ends_the_other_agents(monkeypatch: pytest.MonkeyPatch, bootstrap: Bootstrap) -> None:
    def fail(index: int) -> None:
        if index == 1:
            raise OSError("no more processes")

    scene = Scene(monkeypatch)
    try:
        assert scene.submit(bootstrap, before=fail) == (1, "no agent process could be started: no more processes")
        (first,) = scene.started
        assert first.returncode is not None and not scene.backend._watchers
    finally:
        for process in scene.started:
            process.kill()
        scene.backend.close()
