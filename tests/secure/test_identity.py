"""The user of applications whose processes have Java's krb5.conf only, and applications that submit others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hopsml.core import delegation_tokens as tokens
from tests.secure import submitting
from tests.secure.submitting import Way
from tools.hadoop import spark

pytestmark = [pytest.mark.secure, pytest.mark.timeout(1500)]

END_S = 600.0


@pytest.mark.parametrize("way", [Way("ticket", "cluster"), Way("keytab", "client")], ids=str)
def test_containers_and_drivers_without_krb5_conf_have_the_users_short_name(
    way: Way, secure_yarn: Any, tmp_path: Path
) -> None:
    secure_yarn.fs("-mkdir", "-p", "/Projects")
    secure_yarn.fs("-chmod", "1777", "/Projects")
    if way.credential == "ticket":
        secure_yarn.kdc.kinit("alice")
    unknown = {"KRB5_CONFIG": ""} if way.credential == "keytab" else {}  # the keytab is Java's
    job = submitting.submit(secure_yarn, way, "", "identify.py", str(tmp_path / "names"), variables=unknown)
    try:
        output, _ = job.communicate(timeout=END_S)
    finally:
        job.kill()
    assert job.returncode == 0, output[-5000:]
    project = f"{secure_yarn.namenode_url}/Projects/alice"
    found = json.loads((tmp_path / "names").read_text())
    assert (found["driver"], found["worker"], found["project"]) == ("alice", "alice", project)
    assert found["run"].startswith(f"{project}/Experiments/")


def test_driver_with_a_ticket_can_submit_another_application(
    secure_yarn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(tokens.VARIABLE, raising=False)
    way, project = Way("ticket", "client"), f"{secure_yarn.namenode_url}/user/alice/{tmp_path.name}"
    secure_yarn.kdc.kinit("alice")
    few = {"spark.executor.instances": "1"}
    inner = {**submitting.settings(secure_yarn, way, project), **few}
    profile = {"master": "yarn", "deploy_mode": "client", "spark": inner}
    (tmp_path / "inner.yaml").write_text(yaml.safe_dump(profile))
    words = (str(tmp_path / "outer"), "inner", str(tmp_path / "names"))
    variables = {"HOPSML_CONF_DIR": str(tmp_path), "PYTHONPATH": str(spark.ROOT)}
    job = submitting.submit(secure_yarn, way, project, "identify.py", *words, conf=few, variables=variables)
    try:
        output, _ = job.communicate(timeout=END_S)
    finally:
        job.kill()
    assert job.returncode == 0, output[-8000:]
    found = json.loads((tmp_path / "names").read_text())
    assert found["worker"] == "alice"
    assert found["given"] is None, "it has logged in by the ticket, without the tokens of the first application"
