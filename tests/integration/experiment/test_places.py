"""Tests of the names of workers' machines in records and messages: the cluster's names, where they exist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsml.errors import WorkerFailed
from hopsml.experiment import applications, collective, plan
from hopsml.experiment.options import DistributedOptions
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.local


def fail_on_signal(folder: str) -> None:
    """Raise a KeyError once the test has created the file ``go``."""
    import time

    Path(folder, "there").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    raise KeyError("at a word")


@pytest.mark.parametrize("node", ["node7.example.com", ""])
def test_worker_host_and_its_failures_are_named_after_the_yarn_node(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    monkeypatch.setenv("NM_HOST", node)
    options = DistributedOptions(
        fail_on_signal, args={"folder": str(tmp_path)}, min_workers=1, max_workers=1, progress=False, keep_warm=60.0
    )
    run = plan.start(collective.build(options, "distributed", "none"))
    wait_until((tmp_path / "there").exists, "the worker")
    place, machine = (node or "127.0.0.1"), (node or os.uname().nodename)
    assert [one["host"] for one in run.status()["members"]] == [place]
    gang = applications.get_or_start(keep_warm_s=60.0).coordinator.runs[run.run_id].gang
    assert set(gang.membership.hosts.values()) == {machine}  # type: ignore[attr-defined]
    (tmp_path / "go").touch()
    with pytest.raises(WorkerFailed, match=f"on host {place} failed first: KeyError") as caught:
        run.result(END_S)
    assert caught.value.host == place
