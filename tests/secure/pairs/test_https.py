"""Clients of web services that use HTTPS only and require a ticket, with certificates that are trusted or not."""

from __future__ import annotations

import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import delegation_tokens as tokens
from hopsml.doctor import Status, examination
from hopsml.errors import ArgumentError, ClusterError, StorageError
from hopsml.storage import filesystem
from hopsml.storage.filesystem import for_url
from hopsml.yarn import ResourceManager, logs
from tests.helpers import tokens as test_tokens
from tests.helpers.certificates import Authority
from tests.helpers.clock import wait_until
from tests.integration.secure.test_web_services import submit
from tests.secure.pairs.conftest import active_namenode
from tools.hadoop import tls

pytestmark = pytest.mark.secure

Record = Callable[[str, object], None]


def test_applications_logs_and_capacity_are_read_over_https(secure_cluster: Any) -> None:
    yarn = ResourceManager.from_environment()
    assert yarn.scheme == "https" and [node.state for node in yarn.nodes()] == ["RUNNING"]
    application_id = submit("echo hello; sleep 600")
    wait_until(lambda: yarn.application(application_id).am_log_url)
    application = yarn.application(application_id)
    assert application.am_log_url.startswith("https://127.0.0.11:")
    # A secure NodeManager reads logs by Hadoop's native library, which this one lacks; it has accepted the ticket.
    with pytest.raises(ClusterError, match="the NodeManager refuses the log: HTTP 500"):
        wait_until(lambda: logs.read(application) and False)
    for url in (f"{secure_cluster.namenode_url}/", f"{secure_cluster.webhdfs_url}/"):
        assert for_url(url).capacity(url).total > 0
    yarn.kill(application_id)
    wait_until(lambda: yarn.application(application_id).is_final)


@pytest.mark.parametrize("credential", ["ticket", "token"])
def test_files_are_written_and_read_by_swebhdfs(
    credential: str, secure_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    if credential == "token":
        tokens.write(tmp_path / "tokens", test_tokens.obtain(secure_cluster))
        monkeypatch.setenv(tokens.VARIABLE, str(tmp_path / "tokens"))
        monkeypatch.setenv("KRB5CCNAME", "FILE:/nowhere/cache")
    content = bytes(range(256)) * 65_536
    port = secure_cluster.state.ports[active_namenode(secure_cluster)]["http"]
    for place, base in enumerate((secure_cluster.webhdfs_url, f"swebhdfs://localhost:{port}")):
        url = f"{base}/user/alice/by-https-{credential}-{place}"
        for_url(url).write_bytes(url, content)
        stored = for_url(url).read_bytes(url)
        record_property("bytes_lost", len(content) if stored != content else 0)
        assert stored == content and for_url(url).status(url).owner == "alice"
        for_url(url).delete(url)


def test_webhdfs_without_tls_is_refused_with_the_remedy(secure_cluster: Any) -> None:
    port = secure_cluster.state.ports["nn2"]["http"]
    for url in ("webhdfs://ns1/user/alice", f"webhdfs://localhost:{port}/user/alice"):
        with pytest.raises(ArgumentError, match=f"HTTPS only .*; write s{url}"):
            for_url(url)


def test_doctor_examines_a_cluster_with_https(secure_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("hdfs", "yarn", "kdc", "kerberos", "token service", "encryption", "driver logs", "clock")
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"{secure_cluster.namenode_url}/user/alice/project")
    found = {finding.name: finding for finding in examination.examine("yarn").findings}
    assert {name: found[name].summary for name in names if found[name].status is not Status.OK} == {}

    monkeypatch.setenv("HOPSML_CA_BUNDLE", str(foreign_authority(secure_cluster)))
    filesystem.close_all()
    found = {finding.name: finding for finding in examination.examine("yarn").findings}
    yarn = found["yarn"]
    shown = yarn.summary + yarn.remedy
    assert yarn.status is Status.FAIL and "HOPSML_CA_BUNDLE" in shown and "permission" not in shown, yarn


def foreign_authority(cluster: Any) -> Path:
    """Return the file of an authority that has signed none of the cluster's certificates."""
    folder = cluster.home / "foreign"
    folder.mkdir(exist_ok=True)
    return Authority(folder).file


def test_each_client_names_the_setting_for_an_untrusted_certificate(
    secure_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_CA_BUNDLE", str(foreign_authority(secure_cluster)))
    filesystem.close_all()
    with pytest.raises(ClusterError, match="set HOPSML_CA_BUNDLE"):
        ResourceManager.from_environment().nodes()
    native, web = f"{secure_cluster.namenode_url}/", f"{secure_cluster.webhdfs_url}/user/alice"
    for call in (lambda: for_url(native).capacity(native), lambda: for_url(web).status(web)):
        with pytest.raises(StorageError, match="is not trusted; set HOPSML_CA_BUNDLE") as refused:
            call()
        assert type(refused.value) is StorageError
    monkeypatch.setenv("HOPSML_CA_BUNDLE", str(tls.certificate(secure_cluster.tls_folder)))
    filesystem.close_all()
    assert ResourceManager.from_environment().nodes() and for_url(web).status(web).is_dir


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[int]:
    """Yield the port of a server on this host whose certificate nobody has signed that the cluster's clients trust."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            pass

    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    Authority(tmp_path).issue(chain, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_second_resource_manager_is_asked_if_the_certificate_of_the_first_is_not_trusted(
    secure_cluster: Any, untrusted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "conf"
    shutil.copytree(secure_cluster.conf_dir, conf)
    first, second = (f"localhost:{secure_cluster.state.ports[name]['http']}<" for name in ("rm", "rm2"))
    active = secure_cluster.resource_manager.base.removeprefix("https://") + "<"
    site = conf / "yarn-site.xml"
    site.write_text(site.read_text().replace(first, f"127.0.0.1:{untrusted}<").replace(second, active))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(conf))
    assert ResourceManager.from_environment().addresses[0] == f"127.0.0.1:{untrusted}"
    assert [node.state for node in ResourceManager.from_environment().nodes()] == ["RUNNING"]
