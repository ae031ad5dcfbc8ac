"""Tests of a driver that stops between two runs, and of agents with wrong clocks, or that cannot join."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509

from hopsml import experiment
from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.local import LocalBackend
from hopsml.cluster.shared import tls
from hopsml.cluster.shared.tls import make_identity
from hopsml.experiment import applications
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import WAIT_S, wait_until

pytestmark = pytest.mark.local


@pytest.mark.parametrize("held_s", [6.5, pytest.param(3.5, marks=pytest.mark.variant)])
def test_frozen_driver_between_two_runs_fails_neither(
    store: Path, monkeypatch: pytest.MonkeyPatch, held_s: float
) -> None:
    monkeypatch.setenv("HOPSML_LEASE_S", "5")

    def train() -> dict[str, int]:
        return {"n": 1}

    for number in range(2):
        if number:
            ctypes.PyDLL(None).usleep(int(held_s * 1e6))  # with the interpreter's lock
        run = experiment.submit(train, num_workers=2, keep_warm=60, progress=False)
        assert run.result(END_S).metrics["n"] == 1


@pytest.mark.variant
@pytest.mark.parametrize(
    ("group", "held_s"),
    [
        ({"min_workers": 2, "max_workers": 2}, 6.0),  # longer than heartbeat_timeout=, by which its members are judged
        ({"num_workers": 2}, 9.0),  # nearly as long as an agent's lease
    ],
)
def test_frozen_driver_during_a_run_loses_no_worker(
    store: Path, tmp_path: Path, group: dict[str, int], held_s: float
) -> None:
    def train(folder: str) -> int:
        from hopsml.cluster.worker.context import current
        from tests.helpers.cluster.workloads import wait_for_files

        context = current()
        assert context is not None
        Path(folder, f"rank-{context.rank}").touch()
        wait_for_files(folder, "go-on")
        return context.generation

    run = experiment.submit(train, args={"folder": str(tmp_path)}, progress=False, **group)
    wait_until(lambda: all((tmp_path / f"rank-{rank}").exists() for rank in range(2)), "both workers")
    ctypes.PyDLL(None).usleep(int(held_s * 1e6))  # with the interpreter's lock: no thread of the driver runs
    applications.get_or_start().coordinator._call(time.sleep, held_s)  # and once more in the middle of a callback
    (tmp_path / "go-on").touch()
    assert run.result(END_S).value == 0
    assert not any("was lost" in note or "continues" in note for note in run.state.notes), run.state.notes


def test_agent_that_cannot_join_reports_the_reason() -> None:
    backend, problems, ended = LocalBackend(1), list[str](), threading.Event()
    identity = make_identity()

    def on_end(request_id: int, problem: str) -> None:
        problems.append(problem)
        ended.set()

    bootstrap = Bootstrap(
        request_id=1, addresses=(("127.0.0.1", 1),), token="", certificate=identity.certificate, preload=(), lease_s=5.0,
        sys_path=(),
    )  # fmt: skip
    backend.submit(bootstrap, 1, on_end, lambda request_id, index, problem: problems.append(problem))
    assert ended.wait(WAIT_S)
    backend.close()
    (problem,) = problems
    assert problem.startswith(
        "a local agent could not join: ConnectionError: the coordinator answers at none of its addresses"
    )
    assert backend._processes == {} and backend._watchers == []


def test_tls_key_is_loaded_if_shared_memory_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "MEMORY", str(tmp_path / "full"))
    assert make_identity().certificate.startswith("-----BEGIN CERTIFICATE-----")


def test_certificate_is_valid_at_any_time() -> None:
    certificate = x509.load_pem_x509_certificate(make_identity().certificate.encode())
    assert certificate.not_valid_before_utc.year <= 1970 and certificate.not_valid_after_utc.year == 9999
