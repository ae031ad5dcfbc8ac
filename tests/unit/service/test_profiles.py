"""Tests of workers' profiles for a page: list, boxes of one profile, and permission to request one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import ArgumentError
from hopsml.service.browse.files import LEAST_SHARE, MOST_BOXES, flame_graph
from hopsml.service.store.accounts import Role
from hopsml.storage import mailbox
from hopsml.storage.run_dir import RunDir
from tests.helpers.service.project import ProjectOnDisk, RunOnDisk
from tests.helpers.service.served import Served
from tests.unit.service.test_rest import send_request

pytestmark = pytest.mark.fast

NAME = "rank-1-20261127T104500Z.speedscope.json"


def speedscope(frames: list[str], *threads: list[tuple[list[int], float]]) -> bytes:
    """Return a profile from the stacks of each thread (callers first) and their seconds."""
    profiles = [
        {"type": "sampled", "samples": [stack for stack, _ in one], "weights": [s for _, s in one]} for one in threads
    ]
    shared = {"frames": [{"name": name, "file": "train.py", "line": 3} for name in frames]}
    return json.dumps({"shared": shared, "profiles": profiles}).encode()


def test_flame_graph_merges_common_frames_and_puts_the_widest_first() -> None:
    content = speedscope(["main", "read", "train"], [([0, 1], 1.0), ([0, 2], 2.0)], [([0, 2], 1.0)])
    found = flame_graph(content)
    assert found.seconds == 4.0
    assert [(box.depth, box.begin, box.width, box.name) for box in found.boxes] == [
        (0, 0.0, 1.0, "main (train.py:3)"),
        (1, 0.0, 0.75, "train (train.py:3)"),
        (1, 0.75, 0.25, "read (train.py:3)"),
    ]


def test_flame_graph_omits_narrow_boxes_and_limits_depth() -> None:
    narrow = speedscope(["main", "x"], [([0], 1.0), ([0, 1], LEAST_SHARE / 2)])
    assert [box.name for box in flame_graph(narrow).boxes] == ["main (train.py:3)"]
    deep = flame_graph(speedscope(["f"], [([0] * (MOST_BOXES + 500), 1.0)])).boxes
    assert len(deep) == MOST_BOXES and deep[-1].depth == MOST_BOXES - 1
    assert flame_graph(speedscope([], [])).boxes == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"shared": {"frames": []}}',
        speedscope([], [([0], 1.0)]),
        speedscope(["f"], [([1], 1.0)]),
        speedscope(["f"], [([0], -1.0)]),
        b'{"shared": {"frames": [{"name": "f"}]}, "profiles": [{"samples": [[0]], "weights": []}]}',
    ],
)
def test_invalid_profile_is_refused(content: bytes) -> None:
    with pytest.raises(ArgumentError, match="this is no profile of speedscope's"):
        flame_graph(content)


@pytest.fixture
def run(project: ProjectOnDisk) -> RunOnDisk:
    made = project.run("app_1")
    (made.folder / "profiles").mkdir()
    (made.folder / "profiles" / NAME).write_bytes(speedscope(["<script>"], [([0], 1.0)]))
    (made.folder / "profiles" / "rank-0.svg").write_text("<svg onload='alert(1)'/>")
    return made


def test_page_without_job_service_shows_profiles_and_accepts_no_requests(
    project: ProjectOnDisk, run: RunOnDisk
) -> None:
    found = send_request(project, "/api/runs/app_1/profiles").json()
    assert found["wish"] is None and {one["name"] for one in found["profiles"]} == {NAME, "rank-0.svg"}
    assert send_request(project, f"/api/runs/app_1/profiles/{NAME}").json()["boxes"] == [
        [0, 0.0, 1.0, "<script> (train.py:3)"]
    ]
    refused = send_request(project, "/api/runs/app_1/profiles/rank-0.svg")
    assert refused.status_code == 400 and refused.json()["remedy"] == "download it"
    sent = send_request(project, "/api/runs/app_1/files/profiles/rank-0.svg")
    assert (
        sent.headers["content-type"] == "application/octet-stream"
        and "attachment" in sent.headers["content-disposition"]
    )
    assert send_request(project, "/api/runs/app_1/profiles/..%2Frun.json").status_code in (400, 404)
    assert send_request(project, "/api/runs/app_1/profiles/none.speedscope.json").status_code == 404
    assert send_request(project, "/api/v1/runs/app_1/profiles", method="POST").status_code in (404, 405)


@pytest.fixture
def running(served: Served, tmp_path: Path) -> RunDir:
    made = ProjectOnDisk(tmp_path / "project").run("app_1", state=None)
    (made.folder / "driver.json").write_text("{}")
    return RunDir(str(made.folder))


def test_only_users_may_request_one_profile_of_a_running_run(served: Served, running: RunDir) -> None:
    def ask(role: Any = Role.USER, **values: Any) -> Any:
        return served.ask("POST", "runs/app_1/profiles", role, json=values)

    assert ask(Role.VIEWER).status_code == 403 and mailbox.read_profile_request(running) is None
    for wrong in ({"seconds": 0}, {"seconds": 301}, {"rank": -1}, {"rank": "x"}, {"format": "png"}):
        assert ask(**wrong).status_code in (400, 422), wrong
    taken = ask(rank=1, seconds=5, idle=True)
    request = mailbox.read_profile_request(running)
    assert taken.status_code == 202 and request is not None and taken.json() == {"id": request.id}
    assert (request.rank, request.seconds, request.idle, request.state, request.by) == (
        1,
        5,
        True,
        "asked",
        "user, by the page",
    )
    again = ask("bob")
    assert again.status_code == 400 and "as requested by user, by the page" in again.json()["error"]
    mailbox.record_profile_state(running, request, "failed", "no")
    running.write_status({"state": "FINISHED"})
    over = ask()
    assert over.status_code == 400 and "is FINISHED" in over.json()["error"]
    assert served.ask("POST", "runs/none/profiles", json={}).status_code == 404
