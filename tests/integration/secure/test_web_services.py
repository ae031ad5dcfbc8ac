"""Tests of hopsml's HTTP clients with the web services of a Kerberized HDFS and YARN, each of which requires a ticket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hopsml.core import hadoop_http
from hopsml.doctor import Status, examination
from hopsml.errors import ClusterError, PermissionRefused
from hopsml.storage import filesystem
from hopsml.yarn import ResourceManager, logs
from tests.helpers.clock import wait_until
from tests.helpers.kerberos import use_ticket

pytestmark = pytest.mark.hadoop


@pytest.fixture
def cluster(secure_yarn: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The cluster with a ticket of alice; helper processes of the storage end with the test."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_yarn.conf_dir))
    use_ticket(monkeypatch, secure_yarn.kdc, "alice")
    filesystem.close_all()
    yield secure_yarn
    filesystem.close_all()


def submit(command: str) -> str:
    """Submit an application whose only container runs a shell command; return its id."""
    yarn = ResourceManager.from_environment()
    base = f"{yarn.scheme}://{yarn.addresses[0]}/ws/v1/cluster/apps"
    made = hadoop_http.request(f"{base}/new-application", 30, method="POST", body=b"{}", accept="application/json")
    application_id: str = json.loads(made.body)["application-id"]
    asked = {
        "application-id": application_id,
        "application-name": "shell",
        "application-type": "YARN",
        "am-container-spec": {"commands": {"command": f"{command} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"}},
        "max-app-attempts": 1,
        "resource": {"memory": 256, "vCores": 1},
    }
    answer = hadoop_http.request(base, 30, method="POST", body=json.dumps(asked).encode())
    assert answer.status == 202, answer.message
    return application_id


def test_application_is_followed_read_and_ended_with_a_ticket(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    yarn = ResourceManager.from_environment()
    assert len(yarn.nodes()) == 2
    application_id = submit("echo hello; sleep 600")
    wait_until(lambda: yarn.application(application_id).am_log_url)
    application = yarn.application(application_id)
    assert application.user == "alice"
    # A secure NodeManager reads logs by Hadoop's native library, which this one lacks; it has accepted the ticket.
    with pytest.raises(ClusterError, match="the NodeManager refuses the log: HTTP 500"):
        wait_until(lambda: logs.read(application) and False)

    monkeypatch.setenv("KRB5CCNAME", "FILE:/nowhere/cache")
    with pytest.raises(ClusterError, match=r"cannot be asked: .* requires Kerberos: .*; run `kinit`"):
        yarn.application(application_id)
    with pytest.raises(ClusterError, match=r"cannot be read: .* requires Kerberos: .*; run `kinit`"):
        logs.read(application)

    use_ticket(monkeypatch, cluster.kdc, "alice")
    yarn.kill(application_id)
    wait_until(lambda: yarn.application(application_id).is_final)


def test_capacity_and_files_by_webhdfs_need_a_ticket(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    native = filesystem.for_url(cluster.namenode_url)
    assert native.capacity(f"{cluster.namenode_url}/").total > 0
    folder = f"{cluster.webhdfs_url}/user/alice/by-http"
    store = filesystem.for_url(folder)
    content = bytes(range(256)) * 4096
    store.write_bytes(f"{folder}/file", content)
    assert store.read_bytes(f"{folder}/file") == content
    assert store.status(f"{folder}/file").owner == "alice"
    store.delete(folder, recursive=True)

    monkeypatch.setenv("KRB5CCNAME", "FILE:/nowhere/cache")
    filesystem.close_all()
    with pytest.raises(PermissionRefused, match=r"no valid Kerberos ticket or token; run `kinit`") as refused:
        filesystem.for_url(folder).status(folder)
    assert "<html" not in str(refused.value)


def test_webhdfs_acts_for_another_user(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use_ticket(monkeypatch, cluster.kdc, "service")
    monkeypatch.setenv("HADOOP_PROXY_USER", "alice")
    filesystem.close_all()
    file = f"{cluster.webhdfs_url}/user/alice/by-proxy"
    filesystem.for_url(file).write_bytes(file, b"text")
    assert filesystem.for_url(file).status(file).owner == "alice"
    filesystem.for_url(file).delete(file)


def test_doctor_examines_the_secure_cluster(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("hdfs", "yarn", "kdc", "kerberos", "short name", "token service", "encryption", "driver logs", "clock")
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"{cluster.namenode_url}/user/alice/project")
    found = {finding.name: finding for finding in examination.examine("yarn").findings}
    assert {name: found[name].summary for name in names if found[name].status is not Status.OK} == {}
    assert found["project store"].status is not Status.FAIL  # it may be slow
    assert found["hdfs"].facts["total_bytes"] > 0 and "alice@LAB.TEST" in found["kerberos"].summary

    monkeypatch.setenv("KRB5CCNAME", "FILE:/nowhere/cache")
    filesystem.close_all()
    found = {finding.name: finding for finding in examination.examine("yarn").findings}
    for name in ("project store", "hdfs", "yarn", "kerberos"):
        assert found[name].status is Status.FAIL and "kinit" in found[name].summary + found[name].remedy, found[name]
        assert "<" not in found[name].summary
