"""Certificates of a private authority, for servers of tests."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Private certificate authority; ``file`` is its certificate."""

    def __init__(self, folder: Path) -> None:
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _name("an authority of a test's")
        self._made = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._made.public_bytes(serialization.Encoding.PEM))

    def issue(self, chain: Path, key: Path, *, address: str = "127.0.0.1", password: bytes | None = None) -> bytes:
        """Write a certificate for an address, and its key; return the certificate in DER."""
        own = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        made = self._signed(_name("a server"), own, names)
        how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        for file, content in (
            (key, own.private_bytes(encoding, form, how)),
            (chain, made.public_bytes(serialization.Encoding.PEM)),
        ):
            fresh = file.with_suffix(".fresh")
            fresh.write_bytes(content)
            fresh.rename(file)
        return made.public_bytes(serialization.Encoding.DER)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, more: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(more, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
