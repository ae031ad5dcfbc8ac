"""A Kerberized cluster whose web services ask for no ticket, and clocks that differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import delegation_tokens as tokens
from hopsml.yarn import ResourceManager
from tests.helpers import clock_shift, scenarios
from tests.helpers.clock import END_S
from tests.helpers.kerberos import use_ticket

pytestmark = pytest.mark.secure

OFF_S = 600
CLOCKS = """
import json, sys, time
from hopsml.core import hadoop_http
from hopsml.doctor import examination, kerberos

facts = kerberos.kdc("")
finding = examination.check_clock(time.time(), {"the KDC": facts.skew_s})
try:
    refusal = f"answered: {hadoop_http.request(sys.argv[1], 30).status}"
except hadoop_http.NoAnswer as error:
    refusal = f"{type(error).__name__}: {error}"
print(json.dumps({"skew_s": facts.skew_s, "clock": [finding.status.name, finding.remedy], "request": refusal}))
"""


def test_resource_manager_without_spnego_answers_without_a_ticket(
    secure_hdfs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios.watch(secure_hdfs)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_hdfs.conf_dir))
    for name, value in secure_hdfs.kdc.environment().items():
        monkeypatch.setenv(name, value)
    assert ResourceManager.from_environment().nodes() == []


@pytest.mark.skipif(bool(clock_shift.HINDRANCE), reason=clock_shift.HINDRANCE)
@pytest.mark.parametrize("ahead_s", [OFF_S, -OFF_S])
def test_clock_that_is_ten_minutes_off_is_reported(
    ahead_s: int, secure_hdfs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios.watch(secure_hdfs)
    use_ticket(monkeypatch, secure_hdfs.kdc, "alice")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_hdfs.conf_dir))
    monkeypatch.delenv(tokens.VARIABLE, raising=False)
    url = f"http{secure_hdfs.webhdfs_url.removeprefix('webhdfs')}/webhdfs/v1/?op=LISTSTATUS"
    done = subprocess.run(
        [sys.executable, "-c", CLOCKS, url],
        env={**os.environ, **clock_shift.shifted(ahead_s, tmp_path)},
        capture_output=True,
        text=True,
        timeout=END_S,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert abs(found["skew_s"] + ahead_s) < 30
    assert found["clock"][0] == "FAIL" and "synchronise the clocks" in found["clock"][1]
    assert found["request"].startswith("AccessError") and "clock" in found["request"].lower(), found
