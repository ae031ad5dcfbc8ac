"""Tests of a job service over TLS: permitted addresses, accepted, renewed and refused certificates."""

from __future__ import annotations

import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from hopsml.client import Client
from hopsml.errors import ArgumentError, ServiceError
from hopsml.service.rest import server
from hopsml.service.server import ServerSettings, run_server
from hopsml.service_connection import CA
from tests.helpers.certificates import Authority
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.integration.service.prefix_proxy import prefixed

pytestmark = pytest.mark.local


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[tuple[str, Path]]:
    """Start a server and yield the address it prints, and its log."""
    log = folder / "server.log"
    command = [sys.executable, "-m", "hopsml", "server", "--state", str(folder / "state"), "--profile", "local"]
    command += ["--project-url", f"file://{folder}/project", *more]
    with open(log, "w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        assert line, log.read_text()
        yield line, log
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0, log.read_text()
        process.stdout.close()


def test_client_and_browser_use_a_server_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, chain, key = Authority(tmp_path), tmp_path / "server.pem", tmp_path / "server.key"
    authority.issue(chain, key)
    with serving(tmp_path, "--certificate", str(chain), "--key", str(key), "--trust-users") as (printed, log):
        address = printed.partition("?")[0]
        assert address.startswith("https://127.0.0.1:")
        monkeypatch.setenv("HOPSML_SERVER_STATE", str(tmp_path / "state"))
        for name in ("HOPSML_SERVER", "HOPSML_TOKEN", CA):
            monkeypatch.delenv(name, raising=False)
        own = Client.of_environment()  # trusts what its server has, and nothing else
        token = own.create_token("bob", "user")
        monkeypatch.setenv("HOPSML_SERVER", address)
        monkeypatch.setenv("HOPSML_TOKEN", token)
        with pytest.raises(ServiceError, match=f"certificate of {address[:-1]} is not trusted.*set {CA}"):
            Client.of_environment().jobs()
        monkeypatch.setenv(CA, str(authority.file))
        assert Client.of_environment().jobs() == []
        elsewhere = address.replace("127.0.0.1", "localhost")  # whose name it does not have
        with pytest.raises(ServiceError, match=r"is not trusted.*localhost.*use the host name in the certificate"):
            Client(elsewhere, token, authority.file).jobs()
        with pytest.raises(ServiceError, match="does not answer"):
            Client(address.replace("https", "http"), token).revoke_token("nothing")
        with httpx.Client(verify=ssl.create_default_context(cafile=str(authority.file))) as browser:
            assert "; Secure" in browser.get(printed).headers["set-cookie"]
        there = (str(urlsplit(address).hostname), urlsplit(address).port or 0)
        other = tmp_path / "other.pem"
        authority.issue(other, tmp_path / "other.key")
        other.rename(chain)  # without its key
        wait_until(lambda: "the certificate before goes on" in log.read_text(), "a word about half a pair")
        assert Client.of_environment().jobs() == []
        renewed = authority.issue(chain, key)
        wait_until(lambda: ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(there)) == renewed, "the new one")
        assert Client.of_environment().jobs() == []


def test_server_without_tls_is_distinguished_from_a_wrong_certificate() -> None:
    with (
        prefixed("http://127.0.0.1:1/", "") as address,
        pytest.raises(ServiceError, match=r"the TLS connection to .* failed.*write http://"),
    ):
        Client(address.partition("?")[0].replace("http:", "https:"), "token").jobs()


def test_address_beyond_loopback_requires_tls(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "127.0.0.2", "example.org"):
        with pytest.raises(ArgumentError, match=f"host='{host}': without TLS .*--certificate FILE --key FILE"):
            run_server(ServerSettings(tmp_path / "state", profile="local", host=host), lambda address: None)
        assert not (tmp_path / "state" / "service.db").exists()
    Authority(tmp_path).issue(chain := tmp_path / "a.pem", key := tmp_path / "a.key")
    listener = server.bind_public("127.0.0.2", 0, server.Certificate(chain, key))
    assert server.server_url(listener, scheme="https").startswith("https://127.0.0.2:")
    listener.close()
    with pytest.raises(ArgumentError, match="no such address here"):
        server.bind_public("no such host", 0, server.Certificate(chain, key))


def test_unusable_certificates_are_refused(tmp_path: Path) -> None:
    authority, chain, key = Authority(tmp_path), tmp_path / "a.pem", tmp_path / "a.key"
    with pytest.raises(ArgumentError, match=r"--certificate .*: a certificate and its key are two files; name --key"):
        server.certificate_of_options(chain, None)
    with pytest.raises(ArgumentError, match="name --certificate"):
        server.certificate_of_options(None, key)
    assert server.certificate_of_options(None, None) is None
    with pytest.raises(ArgumentError, match="No such file"):
        server.Certificate(chain, key).context()
    authority.issue(chain, key, password=b"secret")
    with pytest.raises(ArgumentError, match="without a password"):
        server.Certificate(chain, key).context()
    authority.issue(chain, tmp_path / "other.key")
    authority.issue(tmp_path / "other.pem", key)
    with pytest.raises(ArgumentError, match="MISMATCH"):
        server.Certificate(chain, key).context()
    (tmp_path / "nonsense.pem").write_text("nonsense")
    with pytest.raises(ArgumentError, match="PEM file"):
        server.Certificate(tmp_path / "nonsense.pem", key).context()
    for wrong in (tmp_path / "nonsense.pem", tmp_path / "missing.pem"):
        with pytest.raises(ArgumentError, match=f"{CA}={wrong}"):
            Client("https://127.0.0.1:1", "token", wrong)


def test_public_address_must_be_an_http_url(tmp_path: Path) -> None:
    for wrong in ("jobs.example.org", "ftp://jobs.example.org", "https://", "https://a:port/", "https://a/?token=b"):
        with pytest.raises(ArgumentError, match=r"--address .*: write https://HOST:PORT/"):
            run_server(ServerSettings(tmp_path, profile="local", address=wrong), lambda address: None)
