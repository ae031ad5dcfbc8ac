"""Kerberos of this machine's libgssapi_krb5, by ctypes: tokens of a client for HTTP's Negotiate, and texts of errors.

The library is part of MIT Kerberos (Debian: libgssapi-krb5-2, Red Hat: krb5-libs). It reads KRB5_CONFIG and KRB5CCNAME.
A call may wait for a KDC, which no argument bounds.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_size_t, c_uint32, c_void_p
from typing import Any

LIBRARY = "libgssapi_krb5.so.2"
_ERRORS = 0xFFFF0000  # of a major status; the lower bits are remarks
_CONTINUE_NEEDED = 1
_MUTUAL, _SEQUENCE = 2, 8
_OF_GSS, _OF_MECHANISM = 1, 2  # kinds of status codes


class GssError(OSError):
    """Error of a call to the library; the text is the library's.

    Attributes:
        major: routine error of GSS-API; 0 for none.
        minor: code of Kerberos, negative as in krb5.h; 0 for none.
    """

    def __init__(self, text: str, major: int = 0, minor: int = 0) -> None:
        super().__init__(text)
        self.major, self.minor = major, minor


class _Buffer(ctypes.Structure):
    _fields_ = (("length", c_size_t), ("value", c_void_p))

    @classmethod
    def of(cls, data: bytes) -> _Buffer:
        """Return a buffer that refers to ``data``, and keeps it."""
        made = cls(len(data), ctypes.cast(ctypes.c_char_p(data), c_void_p))
        made.data = data
        return made


class _Oid(ctypes.Structure):
    _fields_ = (("length", c_uint32), ("elements", c_void_p))

    @classmethod
    def of(cls, dotted: str) -> _Oid:
        """Return an object identifier that begins with 1.2 or 1.3."""
        data = bytes.fromhex(dotted)
        made = cls(len(data), ctypes.cast(ctypes.c_char_p(data), c_void_p))
        made.data = data
        return made


_HOST_BASED = _Oid.of("2a864886f71201020104")  # 1.2.840.113554.1.2.1.4
_SPNEGO = _Oid.of("2b0601050502")  # 1.3.6.1.5.5.2
_KERBEROS = _Oid.of("2a864886f712010202")  # 1.2.840.113554.1.2.2


@functools.cache
def _library() -> Any:
    try:
        found = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise GssError(f"the library {LIBRARY} cannot be loaded ({error})") from None
    buffers, status = POINTER(_Buffer), POINTER(c_uint32)
    for name, arguments in {
        "gss_import_name": (status, buffers, POINTER(_Oid), POINTER(c_void_p)),
        "gss_release_name": (status, POINTER(c_void_p)),
        "gss_release_buffer": (status, buffers),
        "gss_delete_sec_context": (status, POINTER(c_void_p), c_void_p),
        "gss_display_status": (status, c_uint32, ctypes.c_int, c_void_p, status, buffers),
        "gss_init_sec_context": (
            status, c_void_p, POINTER(c_void_p), c_void_p, POINTER(_Oid), c_uint32, c_uint32, c_void_p,
            buffers, c_void_p, buffers, POINTER(c_uint32), POINTER(c_uint32),
        ),
    }.items():  # fmt: skip
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, c_uint32
    return found


class Initiator:
    """Client's side of one authentication to a service, with proof of the service's identity; a context manager."""

    def __init__(self, host: str) -> None:
        """Name the service HTTP at ``host``, which krb5.conf may make canonical. Raises GssError."""
        self._library = _library()
        self._name, self._context = c_void_p(), c_void_p()
        self._mechanism = _SPNEGO
        self.is_complete = False  # True when the service has proved that it has the key of its principal
        text, minor = _Buffer.of(f"HTTP@{host}".encode()), c_uint32()
        major = self._library.gss_import_name(byref(minor), byref(text), byref(_HOST_BASED), byref(self._name))
        _check(major, minor)

    def __enter__(self) -> Initiator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def step(self, received: bytes = b"") -> bytes:
        """Process the service's token, and return the next one to send; empty for the last.

        Raises:
            GssError: there is no ticket, no KDC, no such service, or the service's token is wrong.
        """
        try:
            return self._step(received)
        except GssError:
            if received:
                raise
        # The negotiating mechanism hides the code of Kerberos and its text.
        self._forget_context()
        self._mechanism = _KERBEROS
        return self._step(b"")

    def _step(self, received: bytes) -> bytes:
        sent, taken, flags, minor = _Buffer(), _Buffer.of(received), c_uint32(), c_uint32()
        major = self._library.gss_init_sec_context(
            byref(minor), None, byref(self._context), self._name, byref(self._mechanism), _MUTUAL | _SEQUENCE, 0, None,
            byref(taken) if received else None, None, byref(sent), byref(flags), None,
        )  # fmt: skip
        try:
            _check(major, minor)
            token = ctypes.string_at(sent.value, sent.length) if sent.value else b""
        finally:
            self._library.gss_release_buffer(byref(c_uint32()), byref(sent))
        if not major & _CONTINUE_NEEDED:
            self.is_complete = bool(flags.value & _MUTUAL)
        return token

    def close(self) -> None:
        """Release what the library holds; it may be called twice."""
        self._forget_context()
        if self._name:
            self._library.gss_release_name(byref(c_uint32()), byref(self._name))

    def __del__(self) -> None:  # of an authentication whose answer nobody waited for
        if hasattr(self, "_context"):
            self.close()

    def _forget_context(self) -> None:
        if self._context:
            self._library.gss_delete_sec_context(byref(c_uint32()), byref(self._context), None)


def _check(major: int, minor: c_uint32) -> None:
    """Raise GssError if the major status is an error."""
    if major & _ERRORS:
        code = ctypes.c_int32(minor.value).value
        special = [text for text in _texts(minor.value, _OF_MECHANISM) if text not in ("", "Unknown error", "Success")]
        raise GssError("; ".join(special or _texts(major, _OF_GSS)), major & _ERRORS, code)


def _texts(code: int, kind: int) -> list[str]:
    """Return the library's texts for a status code."""
    library, found, rest = _library(), [], c_uint32(0)
    while True:
        text = _Buffer()
        failed = library.gss_display_status(byref(c_uint32()), code, kind, None, byref(rest), byref(text))
        if not failed and text.value:
            found.append(ctypes.string_at(text.value, text.length).decode(errors="replace").strip())
        library.gss_release_buffer(byref(c_uint32()), byref(text))
        if failed or not rest.value:
            return found
