"""Tests of truststores, and of requests to an HTTPS server whose certificate only a truststore or a PEM file makes valid."""

from __future__ import annotations

import hashlib
import ssl
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, pkcs12

from hopsml.core import hadoop_http
from hopsml.core.trust_store import StoreFormatError, certificates, jks_certificates
from tests.helpers.certificates import Authority

pytestmark = pytest.mark.fast

PASSWORD = "changeit"


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def block(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def trusted(certificate: bytes, version: int = 2) -> bytes:
    kind = text("X.509") if version == 2 else b""
    return struct.pack(">I", 2) + text("ca") + struct.pack(">Q", 0) + kind + block(certificate)


def key(chain: list[bytes]) -> bytes:
    entry = (
        struct.pack(">I", 1)
        + text("own")
        + struct.pack(">Q", 0)
        + block(b"encrypted key")
        + struct.pack(">I", len(chain))
    )
    return entry + b"".join(text("X.509") + block(each) for each in chain)


def jks(*entries: bytes, password: str = PASSWORD, version: int = 2, magic: int = 0xFEEDFEED) -> bytes:
    """A truststore as Java writes it."""
    content = struct.pack(">III", magic, version, len(entries)) + b"".join(entries)
    return content + hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()


def test_jks_has_its_trusted_certificates_without_keys_and_chains() -> None:
    stored = jks(trusted(b"one"), key([b"own", b"issuer"]), trusted(b"two"))
    assert jks_certificates(stored, PASSWORD) == jks_certificates(stored, None) == [b"one", b"two"]
    assert jks_certificates(jks(trusted(b"old", 1), version=1), None) == [b"old"]


@pytest.mark.parametrize(
    ("content", "password", "problem"),
    [
        (jks(trusted(b"one")), "other", "password is wrong"),
        (jks(trusted(b"one"))[:-30], None, "ends within an entry"),
        (jks(magic=0xCECECECE), None, "JCEKS is not supported"),
        (b"something else, long enough for a digest", None, "neither PEM nor PKCS #12 nor JKS"),
        (b"", None, "ends within an entry"),
        (jks(), PASSWORD, "no trusted certificate"),
        (jks(struct.pack(">I", 3) + text("a") + struct.pack(">Q", 0) + text("X") + block(b"")), None, "unknown kind 3"),
        (b"\x30\x03abc", PASSWORD, "PKCS #12"),
    ],
)
def test_unusable_truststore_is_explained(content: bytes, password: str | None, problem: str) -> None:
    with pytest.raises(StoreFormatError, match=problem):
        certificates(content, password)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def address(authority: Authority, tmp_path: Path) -> Iterator[str]:
    """An HTTPS server with a certificate of ``authority``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    authority.issue(tmp_path / "chain.pem", tmp_path / "key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/ws"
    server.shutdown()
    thread.join()
    server.server_close()


def store_of(authority: Authority, kind: str) -> bytes:
    """A truststore with the authority's certificate."""
    made = x509.load_pem_x509_certificate(authority.file.read_bytes())
    if kind == "jks":
        return jks(trusted(made.public_bytes(Encoding.DER)))
    entry = pkcs12.PKCS12Certificate(made, b"ca")
    return pkcs12.serialize_key_and_certificates(None, None, None, [entry], BestAvailableEncryption(PASSWORD.encode()))


@pytest.mark.parametrize("kind", ["jks", "pkcs12"])
def test_truststore_of_hadoop_is_trusted(
    authority: Authority, address: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "truststore.jks"  # Java writes both kinds under this name
    store.write_bytes(store_of(authority, kind))
    configure(tmp_path, {"ssl.client.truststore.location": str(store), "ssl.client.truststore.password": PASSWORD})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert hadoop_http.request(address, 30).status == 200
    store.write_bytes(store_of(Authority(tmp_path), kind))
    with pytest.raises(hadoop_http.AccessError, match="HOPSML_CA_BUNDLE"):
        hadoop_http.request(address, 30)


def configure(folder: Path, values: dict[str, str]) -> None:
    rows = "".join(f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items())
    (folder / "ssl-client.xml").write_text(f"<configuration>{rows}</configuration>")


def test_pem_file_has_precedence_and_an_unknown_authority_is_named(
    authority: Authority, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(hadoop_http.AccessError, match=r"/ws: .*certificate.*; set HOPSML_CA_BUNDLE to a PEM file"):
        hadoop_http.request(address, 30)
    configure(tmp_path, {"ssl.client.truststore.location": str(tmp_path / "missing.jks")})
    with pytest.raises(
        hadoop_http.AccessError, match=r"missing\.jks: the trusted certificates cannot be read .*BUNDLE"
    ):
        hadoop_http.opened(address, 30)
    monkeypatch.setenv("HOPSML_CA_BUNDLE", str(authority.file))
    with hadoop_http.opened(address, 30) as answer:
        assert answer.read() == b"{}"
