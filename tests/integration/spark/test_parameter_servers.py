"""Tests of parameter servers on Spark executors, as tests/integration/experiment/test_parameter_server.py does locally."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hopsml.experiment import collective, plan
from hopsml.experiment.options import ParameterServerOptions
from tests.helpers.clock import END_S
from tests.helpers.cluster.server_run import noted, process_of
from tests.helpers.cluster.workloads import WAIT_S, wait_until
from tests.helpers.training import server_workload

pytestmark = [pytest.mark.spark, pytest.mark.tensorflow, pytest.mark.variant]


def test_killed_parameter_server_is_replaced_on_its_executor(store: Path, tmp_path: Path) -> None:
    done_file = tmp_path / "told"
    options = ParameterServerOptions(
        server_workload.train_until, num_workers=1, num_ps=1, args={"told": str(done_file)}, progress=False
    )
    run = plan.start(collective.build_with_servers(options))
    wait_until(lambda: 0 in run.state.members and (run.state.members[0].step or 0) >= 40, "steps", 3 * WAIT_S)
    os.kill(process_of(run, 2), signal.SIGKILL)
    noted(run, "rank 2 (ps) is running again")
    done_file.write_text("30")
    value = run.result(END_S).value
    assert value["recoveries"] == 1 and value["more"] >= 30
