"""Tests of WebHDFS with a token and two NameNodes, the first of which is on standby and knows no tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from hopsml.core import delegation_tokens as tokens
from hopsml.core.delegation_tokens import Credentials, Token
from hopsml.errors import PermissionRefused, StorageUnavailable
from hopsml.storage import causes, filesystem
from hopsml.storage.filesystem import for_url
from tests.integration.storage import http_server

pytestmark = pytest.mark.local

REFUSED = "Failed to obtain user group information: org.apache.hadoop.security.token.SecretManager$InvalidToken: "


def refusing(reason: str) -> type[http_server.Handler]:
    """Return the handler of a NameNode that refuses each token with a reason."""

    class Standby(http_server.Handler):
        def do_GET(self) -> None:
            error = {"exception": "SecurityException", "message": f"{REFUSED}{reason}"}
            body = json.dumps({"RemoteException": error}).encode()
            self.send_response(403)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Standby


@contextmanager
def serving(handler: type[http_server.Handler]) -> Iterator[str]:
    """Yield the address of a server on this host."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def use(first: str, second: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure the name service ns1 with these web services, and a token for it."""
    rows = {
        "fs.defaultFS": "hdfs://ns1",
        "hadoop.security.authentication": "kerberos",
        "dfs.ha.namenodes.ns1": "nn1,nn2",
        "dfs.namenode.http-address.ns1.nn1": first,
        "dfs.namenode.http-address.ns1.nn2": second,
    }
    text = "".join(f"<property><name>{key}</name><value>{value}</value></property>" for key, value in rows.items())
    (folder / "core-site.xml").write_text(f"<configuration>{text}</configuration>")
    service = "ha-hdfs:ns1"
    tokens.write(folder / "tokens", Credentials((Token(service, b"\0\5alice", b"secret", tokens.HDFS_KIND, service),)))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))
    monkeypatch.setenv(tokens.VARIABLE, str(folder / "tokens"))
    filesystem.close_all()


@pytest.mark.parametrize(
    "reason", ["StandbyException", "org.apache.hadoop.ipc.RetriableException: Namenode is transiting"]
)
def test_active_namenode_is_asked_after_a_standby(reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(refusing(reason)) as standby, serving(http_server.Handler) as active:
        use(standby, active, tmp_path, monkeypatch)
        url = "webhdfs://ns1/file"
        assert for_url(url).status(url).length == len(http_server.CONTENT)
        assert for_url(url).read_bytes(url) == http_server.CONTENT
        filesystem.close_all()


def test_failover_is_passing_and_a_refused_token_is_not_a_failover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "webhdfs://ns1/file"
    with serving(refusing("StandbyException")) as one, serving(refusing("StandbyException")) as other:
        use(one, other, tmp_path, monkeypatch)
        with pytest.raises(StorageUnavailable, match="only a standby NameNode answered") as passing:
            for_url(url).status(url)
        assert causes.is_transient(passing.value)
        filesystem.close_all()
    with serving(refusing("token (..) can't be found in cache")) as one, serving(http_server.Handler) as other:
        use(one, other, tmp_path, monkeypatch)
        with pytest.raises(PermissionRefused, match="the delegation token is expired or unknown"):
            for_url(url).status(url)
        filesystem.close_all()
