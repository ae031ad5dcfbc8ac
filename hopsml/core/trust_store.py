"""Certificates that clients of Hadoop's HTTPS services trust: of ssl-client.xml or HOPSML_CA_BUNDLE, and the system's.

A truststore of Java is JKS or PKCS #12, whatever its name ends with. JKS holds trusted certificates without encryption:

    magic 0xFEEDFEED, version, count, entries, SHA-1 of password and content
    entry: tag (1 key, 2 certificate), alias, time, [length and key, count of the chain], type, length and certificate
"""

from __future__ import annotations

import functools
import hashlib
import ssl
import struct
from pathlib import Path

from hopsml.core import settings
from hopsml.core.variables import SETTINGS, Settings

_JKS_MAGIC, _JCEKS_MAGIC = 0xFEEDFEED, 0xCECECECE
_DIGEST_BYTES = 20
_PREFIX = "ssl.client.truststore"


REMEDY = f"set {Settings.ca_bundle.name} to a PEM file with the certificate of the service or of its authority"


class StoreFormatError(ValueError):
    """Error: the content is not that of a truststore, or the password is wrong."""


class TrustError(OSError):
    """Error: the configured certificates cannot be read; the text has the remedy."""


def client_context() -> ssl.SSLContext | None:
    """Return the TLS settings of requests to Hadoop; None if only the system's certificates are trusted.

    ``HOPSML_CA_BUNDLE``, a PEM file, has precedence over the truststore of ssl-client.xml.

    Raises:
        TrustError: the file cannot be read.
    """
    if SETTINGS.ca_bundle:
        file, password = Path(SETTINGS.ca_bundle), None
    else:
        known = settings.ssl_client_settings()
        if not known.get(f"{_PREFIX}.location"):
            return None
        file, password = Path(known[f"{_PREFIX}.location"]), known.get(f"{_PREFIX}.password")
    try:
        facts = file.stat()
        return _context(file, password, facts.st_mtime_ns, facts.st_size)
    except (OSError, ValueError) as error:
        raise TrustError(f"{file}: the trusted certificates cannot be read ({error}); {REMEDY}") from error


@functools.lru_cache(maxsize=4)
def _context(file: Path, password: str | None, modified_ns: int, length: int) -> ssl.SSLContext:
    """Return the settings for one file, cached; time and size are part of the key, so that a changed file is read again."""
    context = ssl.create_default_context()
    for certificate in certificates(file.read_bytes(), password):
        context.load_verify_locations(cadata=certificate)
    return context


def certificates(content: bytes, password: str | None) -> list[bytes] | list[str]:
    """Return the trusted certificates of a PEM file (as one text) or of a truststore (DER each). Pure.

    Args:
        content: bytes of the file.
        password: of the truststore; JKS can be read without one, and its integrity is verified with it.

    Raises:
        StoreFormatError: unknown format, wrong password or no certificate.
    """
    if b"-----BEGIN CERTIFICATE-----" in content:
        return [content.decode("ascii", errors="ignore")]
    found = _pkcs12(content, password) if content[:1] == b"\x30" else jks_certificates(content, password)
    if not found:
        raise StoreFormatError("it contains no trusted certificate")
    return found


def _pkcs12(content: bytes, password: str | None) -> list[bytes]:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    try:
        store = pkcs12.load_pkcs12(content, password.encode() if password is not None else None)
    except ValueError as error:
        raise StoreFormatError(f"PKCS #12: {error}") from error
    own = [store.cert] if store.cert and store.key is None else []
    return [each.certificate.public_bytes(Encoding.DER) for each in [*own, *store.additional_certs]]


def jks_certificates(content: bytes, password: str | None) -> list[bytes]:
    """Return the trusted certificates of a JKS file, without keys and their chains; StoreFormatError as ``certificates``."""
    reader = _JksReader(content[:-_DIGEST_BYTES])
    try:
        magic, version, count = reader.numbers(">III")
        if magic == _JCEKS_MAGIC:
            raise StoreFormatError("its format JCEKS is not supported")
        if magic != _JKS_MAGIC or version not in (1, 2):
            raise StoreFormatError("it is neither PEM nor PKCS #12 nor JKS")
        if password is not None and _digest(content, password) != content[-_DIGEST_BYTES:]:
            raise StoreFormatError("the password is wrong, or the file is damaged")
        found = []
        for _ in range(count):
            (tag,) = reader.numbers(">I")
            reader.text()
            reader.numbers(">Q")
            if tag == 1:
                reader.block()
            (length,) = reader.numbers(">I") if tag == 1 else (1,)
            for _ in range(length):
                if version == 2:
                    reader.text()
                certificate = reader.block()
                if tag == 2:
                    found.append(certificate)
            if tag not in (1, 2):
                raise StoreFormatError(f"it has an entry of the unknown kind {tag}")
    except struct.error as error:
        raise StoreFormatError("it ends within an entry") from error
    return found


def _digest(content: bytes, password: str) -> bytes:
    data = password.encode("utf-16-be") + b"Mighty Aphrodite" + content[:-_DIGEST_BYTES]
    return hashlib.sha1(data, usedforsecurity=False).digest()


class _JksReader:
    """Fields of a JKS file in order; struct.error at its end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def numbers(self, layout: str) -> tuple[int, ...]:
        found = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return found

    def block(self) -> bytes:
        return self._take(self.numbers(">I")[0])

    def text(self) -> bytes:
        return self._take(self.numbers(">H")[0])

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise struct.error
        self._at += count
        return self._data[self._at - count : self._at]
