"""Applications that outlive the tokens of their submission: by keytab or ticket, with the driver here or on YARN."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import scenarios
from tests.helpers.clock import wait_until
from tests.helpers.storage.token_runs import missing_bytes
from tests.secure import submitting
from tests.secure.submitting import Way

pytestmark = pytest.mark.secure

WAYS = [Way(credential, mode) for credential in ("keytab", "ticket") for mode in ("client", "cluster")]
LIVES = 2.2  # renewal intervals that the training lasts
START_S = 300.0


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.timeout(1500)
def test_application_stores_everything_although_its_first_tokens_expire(
    way: Way,
    secure_yarn: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = f"{secure_yarn.namenode_url}/user/alice/{tmp_path.name}"
    submitting.use_from_here(monkeypatch, secure_yarn)
    scenarios.expect(secure_yarn, tmp_path, f"{project}/stored")
    job = submitting.submit(secure_yarn, way, project, "store.py", str(tmp_path), f"{project}/stored")
    try:
        first = f"{project}/stored/0-0"
        wait_until(lambda: job.poll() is not None or submitting.exists(first), "the first file", START_S)
        began = time.monotonic()
        lasts_s = LIVES * secure_yarn.state.security.token_renew_s
        wait_until(lambda: job.poll() is not None or time.monotonic() - began > lasts_s, "the training", 2 * lasts_s)
        (tmp_path / "stop").touch()
        output, _ = job.communicate(timeout=START_S)
    finally:
        job.kill()
    scenarios.show("output", output)
    found = re.search(r"application_\d+_\d+", output)
    assert job.returncode == 0 and found, output[-5000:] + (submitting.logs_of(secure_yarn, found[0]) if found else "")
    assert secure_yarn.application_state(found[0]).final_status == "SUCCEEDED"
    run = f"{project}/Experiments/{found[0]}_1"
    assert submitting.read_json(f"{run}/status.json")["state"] == "FINISHED"
    assert any(url.endswith("/logs/g0-rank1.log") for url in submitting.files_below(run))
    assert missing_bytes(tmp_path, f"{project}/stored") == 0
    if way == Way("ticket", "client"):
        assert "without a new Kerberos ticket this application can use HDFS until" in output
