"""A certificate for one coordinator's life: made in memory, pinned by the agents, never written for others to read."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from dataclasses import dataclass

MEMORY = "/dev/shm"  # where files lie in memory


@dataclass(frozen=True)
class Identity:
    """A self-signed certificate (PEM) and the server context that uses it."""

    certificate: str
    context: ssl.SSLContext


def make_identity(name: str = "hopsml-coordinator") -> Identity:
    """A new certificate and key as the ssl module takes them."""
    pem, secret = make_key_pair(name)
    return Identity(pem.decode(), server_context(pem, secret))


def server_context(pem: bytes, secret: bytes) -> ssl.SSLContext:
    """Of a server that shows this certificate and has its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # nobody comes twice; two of them would be a fifth of what a handshake costs
    try:
        _load(context, secret + pem, MEMORY)
    except OSError:  # it is full, or not there
        _load(context, secret + pem, None)
    return context


def make_key_pair(name: str) -> tuple[bytes, bytes]:
    """A self-signed certificate and its new key on P-256, both PEM, whatever the time is: who connects trusts this one
    certificate, and clocks may be wrong.

    It ends with its owner's life, since nobody trusts it any more then; an expiry would only turn away hosts whose clocks
    are off, without their being able to say so.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(1950, 1, 1, tzinfo=datetime.timezone.utc))
        .not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.timezone.utc))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, secret


def _load(context: ssl.SSLContext, key_and_certificate: bytes, folder: str | None) -> None:
    """The ssl module reads key material from files alone: one that only this user can read, gone right after."""
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        file.write(key_and_certificate)
        context.load_cert_chain(file.name)
