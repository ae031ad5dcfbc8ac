"""TLS certificate of a server: checked at its start, and loaded again when its files change."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from hopsml.errors import ArgumentError

log = logging.getLogger("hopsml.service")

LOOK_S = 1.0  # seconds between two checks of the files


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate, both in PEM format.

    Attributes:
        chain: The server's certificate, and the intermediate ones up to its authority.
        key: The private key.
    """

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return a TLS context with the certificate. Raises ArgumentError if the files cannot be used."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self.load(made)
        except (OSError, ValueError) as error:  # ssl.SSLError is one of them
            said = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ArgumentError(
                f"--certificate {self.chain} --key {self.key}: they cannot be used ({said}); name a PEM file with the "
                "certificate and one with its key, without a password, which this user may read"
            ) from error
        return made

    def load(self, context: ssl.SSLContext) -> None:
        """Load the present content of the files into a context, for new connections."""
        context.load_cert_chain(self.chain, self.key, password=_no_password)

    def file_versions(self) -> tuple[tuple[int, int], ...]:
        """Return modification times and inodes, which change when a file does."""
        return tuple((found.st_mtime_ns, found.st_ino) for found in (os.stat(self.chain), os.stat(self.key)))


def _no_password() -> str:
    """Refuse a key with a password."""
    raise ValueError("the key has a password")  # otherwise OpenSSL would prompt at the terminal


def pair(certificate: Path | None, key: Path | None) -> Certificate | None:
    """Return the certificate of both options; None without them. Raises ArgumentError if one is missing."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, other = ("--key", "--certificate") if certificate is None else ("--certificate", "--key")
        raise ArgumentError(f"{given} {key or certificate}: a certificate and its key are two files; name {other}, too")
    return Certificate(certificate, key)


async def renewing(certificate: Certificate, context: ssl.SSLContext, look_s: float = LOOK_S) -> None:
    """Load the certificate again whenever its files change, until the task is cancelled.

    Half of a pair, or invalid content, is logged once and not loaded.

    Args:
        certificate: The files.
        context: The server's TLS context.
        look_s: Seconds between two checks.
    """
    told = certificate.file_versions()
    while True:
        await asyncio.sleep(look_s)
        try:
            now = certificate.file_versions()
        except OSError:
            continue  # while an old file is replaced by a new one
        if now == told:
            continue
        told = now
        try:
            certificate.context()  # loading a pair that does not match would leave the server without a certificate
            certificate.load(context)
            log.info("the certificate %s is renewed", certificate.chain)
        except (ArgumentError, OSError, ValueError) as error:
            log.warning("the certificate before goes on: %s", error)
