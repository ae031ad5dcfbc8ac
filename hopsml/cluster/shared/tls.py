"""TLS between agents and their server: a certificate for the server's lifetime, pinned by agents, and their client.

The server is a coordinator, or the driver of a serving; agents connect by WebSocket with a token. The key is never
written to a file that other users can read.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hopsml.core.newer_python import UTC

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection


CONNECT_TIMEOUT_S = 10.0
# per address: the server may be busy admitting a thousand agents and rejecting unauthenticated peers
CONNECT_TRIES = 2


async def connect(
    addresses: Sequence[tuple[str, int]],
    token: str,
    certificate: str,
    max_size: int,
    connection_class: type[ClientConnection] | None = None,
) -> ClientConnection:
    """Connect to the first address that answers.

    Args:
        addresses: Host and port of each address of the server, tried in this order.
        token: Token of the agents.
        certificate: The only trusted certificate, in PEM format.
        max_size: Largest size of a received message in bytes.
        connection_class: Class of the connection; None for that of ``websockets``.

    Raises:
        ConnectionError: No address answers.
        websockets.exceptions.InvalidHandshake: The server refuses the token.
    """
    from websockets.asyncio.client import connect as connect_websocket
    from websockets.exceptions import InvalidMessage

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned
    context.load_verify_locations(cadata=certificate)
    problems = []
    for host, port in [*addresses] * CONNECT_TRIES:
        url_host = f"[{host}]" if ":" in host else host
        try:
            return await connect_websocket(
                f"wss://{url_host}:{port}/",
                ssl=context,
                additional_headers={"Authorization": f"Bearer {token}"},
                compression=None,
                max_size=max_size,
                create_connection=connection_class,
                ping_interval=None,
                open_timeout=CONNECT_TIMEOUT_S,
                proxy=None,
            )
        except (OSError, InvalidMessage) as error:  # InvalidMessage: disconnected during the handshake
            problems.append(f"{host}:{port}: {error}")
    raise ConnectionError(f"the coordinator answers at none of its addresses: {'; '.join(problems)}")


MEMORY = "/dev/shm"  # folder whose files are in memory


@dataclass(frozen=True)
class Identity:
    """Self-signed certificate (PEM) and the server context that uses it."""

    certificate: str
    context: ssl.SSLContext


def make_identity(name: str = "hopsml-coordinator") -> Identity:
    """Create a new certificate and key, and the server context that uses them."""
    pem, secret = make_key_pair(name)
    return Identity(pem.decode(), server_context(pem, secret))


def server_context(pem: bytes, secret: bytes) -> ssl.SSLContext:
    """Return the TLS context of a server with this certificate and key, both PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # clients connect once; two tickets would be a fifth of a handshake's cost
    try:
        _load(context, secret + pem, MEMORY)
    except OSError:  # the memory file system is full, or does not exist
        _load(context, secret + pem, None)
    return context


def make_key_pair(name: str) -> tuple[bytes, bytes]:
    """Create a self-signed certificate and its new key on P-256, both PEM, valid at any time.

    Clients trust only this certificate, and clocks may be wrong. It ends with its owner's lifetime, since it is not
    trusted any more then; an expiry would only reject hosts with wrong clocks, which could not report the reason.
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
        .not_valid_before(datetime.datetime(1950, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, secret


def _load(context: ssl.SSLContext, key_and_certificate: bytes, folder: str | None) -> None:
    """Load key material through a private file that is deleted at once, as the ssl module reads only files."""
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        file.write(key_and_certificate)
        context.load_cert_chain(file.name)
