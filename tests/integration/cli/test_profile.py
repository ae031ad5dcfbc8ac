"""``hopsml runs profile``: py-spy samples a real worker of a real run, and its profile is in the run's directory."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hopsml import experiment
from hopsml.experiment.run import Run
from hopsml.storage import mailbox
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.command_line import Cli
from tests.helpers.local_application import local_application

pytestmark = pytest.mark.local

WAIT_S = 60.0


def rank_1_computes(go_on: str) -> int:
    """Rank 0 waits, rank 1 computes in a loop."""
    import os
    import time

    import hopsml

    def spins_all_day() -> int:
        total = 0
        for number in range(20_000):
            total += number * number
        return total

    with open(f"{go_on}-pid-{os.environ.get('RANK', '0')}", "w") as file:
        file.write(str(os.getpid()))
    hopsml.report(step=0, loss=1.0)
    while not os.path.exists(go_on):
        if os.environ.get("RANK", "0") == "1":
            spins_all_day()
        else:
            time.sleep(0.02)
    return 1


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with local_application(tmp_path):
        arguments = {"go_on": str(tmp_path / "go-on")}
        made = experiment.submit(rank_1_computes, args=arguments, name="profiled", num_workers=2, progress=False)
        pids = [tmp_path / f"go-on-pid-{rank}" for rank in (0, 1)]
        wait_until(lambda: all(one.exists() and one.read_text() for one in pids), "both workers")
        yield made
        (tmp_path / "go-on").touch()
        made.result(END_S)


def test_profile_of_a_rank_shows_its_functions_and_is_listed(run: Run, cli: Cli) -> None:
    printed = cli("runs", "profile", run.run_id, "--rank", "1", "--seconds", "1")
    assert printed.status == 0, printed.err
    path = Path(printed.out.strip().removeprefix("file://"))
    assert path.parent.name == "profiles" and path.name.startswith("rank-1-")
    profile = json.loads(path.read_text())
    assert any("spins_all_day" in frame["name"] for frame in profile["shared"]["frames"])
    raw = cli("runs", "profile", run.run_id, "--rank", "0", "--seconds", "1", "--format", "raw", "--idle")
    assert raw.status == 0, raw.err
    text = Path(raw.out.strip().removeprefix("file://")).read_text()
    assert "rank_1_computes" in text and "spins_all_day" not in text, "of rank 0, which only waits"
    assert len(cli("runs", "profile", run.run_id, "--list").out.splitlines()) == 2


def test_rank_that_cannot_be_profiled_is_explained(run: Run, tmp_path: Path, cli: Cli) -> None:
    missing = cli("runs", "profile", run.run_id, "--rank", "7", "--seconds", "1")
    assert missing.status == 1 and "there is no worker of rank 7 now" in missing.err
    under_way = msgspec.structs.replace(mailbox.checked_profile_request(0, 30, "raw"), state="taking")
    mailbox.request_profile(run.directory, under_way, time.time())
    second = cli("runs", "profile", run.run_id)
    assert second.status == 1 and "a profile of rank 0 is being taken for 30 s" in second.err
    mailbox.record_profile_state(run.directory, under_way, "failed", "a test's")
    pid = int((tmp_path / "go-on-pid-1").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        frozen = cli("runs", "profile", run.run_id, "--rank", "1", "--seconds", "1")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert frozen.status == 1 and "is stopped (SIGSTOP)" in frozen.err, frozen.err
    (tmp_path / "go-on").touch()
    run.result(END_S)
    over = cli("runs", "profile", run.run_id)
    assert over.status == 1 and "is FINISHED: only running workers can be profiled" in over.err
    wrong = cli("runs", "profile", run.run_id, "--format", "png")
    assert wrong.status == 1 and "speedscope, flamegraph, raw" in wrong.err
