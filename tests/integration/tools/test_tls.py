"""Tests of the key and certificate of a local cluster's web services, which the JDK's keytool creates."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

from hopsml.core import trust_store
from tools.hadoop import tls
from tools.hadoop.errors import HadoopError

pytestmark = pytest.mark.local


def test_certificate_is_valid_for_all_hosts_and_trusted_by_java_and_python(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    for _ in range(2):  # the second time another key takes the place of the first
        tls.create(folder, ["localhost", "127.0.0.1", "127.0.0.11"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    pem = tls.certificate(folder).read_text()
    found = x509.load_pem_x509_certificate(pem.encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert sorted(map(str, names.get_values_for_type(x509.IPAddress))) == ["127.0.0.1", "127.0.0.11"]
    der = found.public_bytes(Encoding.DER)
    assert trust_store.certificates(tls.truststore(folder).read_bytes(), tls.PASSWORD) == [der]
    key, certificate, _ = pkcs12.load_key_and_certificates(tls.keystore(folder).read_bytes(), tls.PASSWORD.encode())
    assert key is not None and certificate == found
    assert ssl.create_default_context(cadata=pem).cert_store_stats()["x509"] > 0


def test_failure_of_keytool_is_reported(tmp_path: Path) -> None:
    with pytest.raises(HadoopError, match=r"keytool -genkeypair ended with 1: .*DNSName"):
        tls.create(tmp_path / "tls", ["no such name"])
