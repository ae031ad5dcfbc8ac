"""The certificate of a server: checked at its start, taken up anew when its files change."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from hopsml.errors import ArgumentError

log = logging.getLogger("hopsml.service")

LOOK_S = 1.0  # between two looks at the files


@dataclass(frozen=True)
class Certificate:
    """``chain``: the server's certificate, and those between it and its authority's; ``key``: its own. Both are PEM."""

    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """What a server answers with. Raises ArgumentError."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self.load(made)
        except (OSError, ValueError) as error:  # among them ssl.SSLError
            said = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ArgumentError(
                f"--certificate {self.chain} --key {self.key}: they cannot be used ({said}); name a PEM file with the "
                "certificate and one with its key, without a password, which this user may read"
            ) from error
        return made

    def load(self, context: ssl.SSLContext) -> None:
        """Answer new connections with what the files have now."""
        context.load_cert_chain(self.chain, self.key, password=_no_password)

    def seen(self) -> tuple[tuple[int, int], ...]:
        """What changes when a file does."""
        return tuple((found.st_mtime_ns, found.st_ino) for found in (os.stat(self.chain), os.stat(self.key)))


def _no_password() -> str:
    raise ValueError("the key has a password")  # else OpenSSL would ask for it at the terminal


def pair(certificate: Path | None, key: Path | None) -> Certificate | None:
    """Of both options. Raises ArgumentError where one of them is missing."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, other = ("--key", "--certificate") if certificate is None else ("--certificate", "--key")
        raise ArgumentError(f"{given} {key or certificate}: a certificate and its key are two files; name {other}, too")
    return Certificate(certificate, key)


async def renewing(certificate: Certificate, context: ssl.SSLContext, look_s: float = LOOK_S) -> None:
    """Take up what the files become, for ever; half of a pair, or nonsense, is said once and not taken."""
    told = certificate.seen()
    while True:
        await asyncio.sleep(look_s)
        try:
            now = certificate.seen()
        except OSError:
            continue  # between an old file and a new one
        if now == told:
            continue
        told = now
        try:
            certificate.context()  # a pair that does not fit would leave the server without any
            certificate.load(context)
            log.info("the certificate %s is renewed", certificate.chain)
        except (ArgumentError, OSError, ValueError) as error:
            log.warning("the certificate before goes on: %s", error)
