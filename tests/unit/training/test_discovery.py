"""Tests of workers' published addresses: only those of the newest launch and generation, once complete."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml import job
from hopsml.cluster.worker.context import WorkerContext, set_current
from hopsml.errors import ArgumentError, StartTimeout
from hopsml.service.spec.fields import NAME_PATTERN
from hopsml.training import discovery
from hopsml.training.discovery import ListeningWorker, TaskPorts
from tests.helpers.cluster.workloads import wait_until

pytestmark = pytest.mark.fast
task_names = st.from_regex(NAME_PATTERN.replace("$", r"\Z"), fullmatch=True)
places = st.builds(
    lambda launch, generation, size, rank: ListeningWorker(launch, generation, rank % size, size),
    st.integers(1, 3), st.integers(0, 3), st.integers(1, 4), st.integers(0, 3),
)  # fmt: skip


def listener(folder: Path, launch: int = 1, **more: bool) -> TaskPorts:
    return TaskPorts("server", ("rpc", "metrics"), (folder / "7").as_uri(), launch, **more)


def variables(folder: Path) -> dict[str, str]:
    known = discovery.encode_tasks({"server": (2, ("rpc", "metrics")), "client": (1, ())})
    return {discovery.FOLDER: (folder / "7").as_uri(), discovery.TASKS: known}


def test_addresses_are_available_once_all_workers_announced_them(tmp_path: Path) -> None:
    given_ = variables(tmp_path)
    one = listener(tmp_path)
    one.invalidate_addresses()
    one.write_addresses(ListeningWorker(1, 0, 1, 2), "::1", {"rpc": 5, "metrics": 6})
    with pytest.raises(
        StartTimeout, match=r"task 'server': only 1 of 2 workers have reported their addresses within 0 s; .*logs"
    ):
        job.addresses("server", timeout_s=0, variables=given_)
    later = threading.Timer(0.2, one.write_addresses, (ListeningWorker(1, 0, 0, 2), "node2", {"rpc": 3, "metrics": 4}))
    later.start()
    assert job.addresses("server", variables=given_) == ["node2:3", "[::1]:5"]
    assert job.addresses("server", port="metrics", variables=given_) == ["node2:4", "[::1]:6"]
    later.join()


def test_newer_launch_invalidates_addresses_of_an_earlier_one(tmp_path: Path) -> None:
    given_ = variables(tmp_path)
    listener(tmp_path).write_addresses(ListeningWorker(1, 4, 0, 1), "old", {"rpc": 1})
    assert job.addresses("server", variables=given_) == ["old:1"]
    again = listener(tmp_path, launch=2)
    again.invalidate_addresses()
    with pytest.raises(StartTimeout, match="0 of 2"):
        job.addresses("server", timeout_s=0, variables=given_)
    again.write_addresses(ListeningWorker(2, 0, 0, 1), "new", {"rpc": 2})
    assert job.addresses("server", variables=given_) == ["new:2"]


def test_addresses_of_an_earlier_attempt_are_ignored_and_removed(tmp_path: Path) -> None:
    for number in ("5", "6", "8"):
        old = TaskPorts("server", ("rpc",), (tmp_path / number).as_uri(), 1)
        old.write_addresses(ListeningWorker(1, 0, 0, 1), "old", {"rpc": 1})
    with pytest.raises(StartTimeout, match="0 of 2"):
        job.addresses("server", timeout_s=0, variables=variables(tmp_path))
    discovery.delete_earlier_tries((tmp_path / "7").as_uri())
    assert [path.name for path in tmp_path.iterdir()] == ["8"]
    discovery.delete_earlier_tries((tmp_path / "none" / "7").as_uri())


@given(st.lists(places, max_size=12), st.sets(st.integers(1, 4), max_size=2))
def test_newest_launch_and_generation_determine_the_addresses(
    announced: list[ListeningWorker], launches: set[int]
) -> None:
    found = discovery.newest_workers(
        [
            *(place.file_name for place in announced),
            *map(discovery.launch_marker_name, launches),
            "3.json",
            "x-1-0-2.json",
        ]
    )
    launch = max([*launches, *(place.launch for place in announced)], default=0)
    of_launch = {place for place in announced if place.launch == launch}
    generation = max((place.generation for place in of_launch), default=0)
    assert list(found) == sorted(place for place in of_launch if place.generation == generation)


@given(task_names, task_names)
def test_tasks_with_different_names_have_different_variables(one: str, other: str) -> None:
    assert (discovery.address_variable(one) == discovery.address_variable(other)) == (one == other)


@pytest.mark.parametrize(
    ("task", "port", "words"),
    [
        ("serve", "", "this job has no task 'serve' with ports; did you mean server?"),
        ("client", "", "no task 'client' with ports; there are: server"),
        ("server", "metric", "task 'server' has no port 'metric'; did you mean metrics?"),
    ],
)
def test_unknown_task_or_port_is_refused_with_a_suggestion(tmp_path: Path, task: str, port: str, words: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        job.addresses(task, port=port, variables=variables(tmp_path))
    assert words in str(refused.value)


def test_addresses_outside_of_a_job_raise_an_error() -> None:
    with pytest.raises(ArgumentError, match="this process is not a task of a job"):
        job.addresses("server", variables={})


def test_worker_ports_are_set_before_its_function_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PORT_RPC", "")
    monkeypatch.setenv("HOPSML_PORT_METRICS", "")

    def serve(word: str) -> str:
        """Binds as a server does that knows nothing of hopsml."""
        with socket.create_server(("127.0.0.1", int(os.environ["HOPSML_PORT_RPC"]))):
            return word + job.addresses("server", variables=variables(tmp_path))[0]

    wrapped = listener(tmp_path).wrap_function(serve)
    assert wrapped.__name__ == "serve"
    number = wrapped("at ").removeprefix("at 127.0.0.1:")
    assert number == os.environ["HOPSML_PORT_RPC"] != os.environ["HOPSML_PORT_METRICS"]


def test_ports_are_assigned_only_once() -> None:
    taken = [discovery.reserve_port(None) for _ in range(20)]
    first = taken[0]
    assert len(set(taken)) == 20
    with pytest.raises(Exception, match="no port of HOPSML_PORT_RANGE"):
        discovery.reserve_port((first, first))


def test_remaining_member_announces_its_address_after_a_group_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "CHANGE_S", 0.01)
    for name in ("RPC", "METRICS"):
        monkeypatch.setenv(f"HOPSML_PORT_{name}", "")
    threads_before = threading.active_count()
    set_current(context(tmp_path, generation=1, rank=2, size=3))
    try:
        follower = listener(tmp_path, changes=True)
        follower.reserve_and_publish("node2")
        folder = tmp_path / "7" / "server"
        assert [path.name for path in folder.iterdir()] == ["1-1-2-3.json"]
        set_current(context(tmp_path, generation=2, rank=0, size=1))
        wait_until(lambda: (folder / "1-2-0-1.json").exists(), "its new place")
        assert job.addresses("server", variables=variables(tmp_path)) == [f"node2:{os.environ['HOPSML_PORT_RPC']}"]
    finally:
        set_current(None)
        discovery.release_ports()
    wait_until(lambda: threading.active_count() == threads_before, "the end of its thread")


def context(folder: Path, generation: int, rank: int, size: int) -> WorkerContext:
    places = dict.fromkeys(("work_dir", "events_dir", "checkpoint_dir", "export_dir"), folder)
    return WorkerContext("x", generation, rank, size, 0, "worker", folder.as_uri(), **places)
