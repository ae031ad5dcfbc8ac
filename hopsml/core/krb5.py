"""Tickets, keytabs and the KDC's clock, by ctypes on libkrb5, which libgssapi_krb5 requires: all kinds of ticket caches.

Calls that contact a KDC (``obtain``, ``kdc_time``) take as long as the library tries; callers bound them.
"""

from __future__ import annotations

import calendar
import contextlib
import ctypes
import functools
import re
import time
from collections.abc import Iterator
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int32, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

LIBRARY = "libkrb5.so.3"
KDC_SILENT = (-1765328228, -1765328230)  # codes: no KDC can be contacted, none is known for the realm
_RENEWABLE = 0x00800000
_END = (-1765328242, -1765328202)  # KRB5_CC_END, KRB5_KT_END
# Time of the server in a KRB-ERROR: [4] GeneralizedTime, in DER.
_SERVER_TIME = re.compile(rb"\xa4\x11\x18\x0f(\d{14})Z")
_NO_SERVICE = b"hopsml/clock"


class KerberosError(OSError):
    """Error of a call to the library; the text is the library's, ``code`` that of krb5.h (0: there is no library)."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Ticket:
    """Ticket of a user for further tickets; times are seconds since 1970."""

    principal: str
    cache: str
    ends_s: float
    renewable_until_s: float = 0.0  # 0: it cannot be renewed


class _Key(ctypes.Structure):
    _fields_ = (("magic", c_int32), ("kind", c_int32), ("length", c_uint32), ("contents", c_void_p))


class _Data(ctypes.Structure):
    _fields_ = (("magic", c_int32), ("length", c_uint32), ("data", c_void_p))


class _Credentials(ctypes.Structure):
    _fields_ = (
        ("magic", c_int32), ("client", c_void_p), ("server", c_void_p), ("key", _Key), ("authenticated", c_int32),
        ("starts", c_int32), ("ends", c_int32), ("renew_till", c_int32), ("is_skey", c_uint32), ("flags", c_int32),
        ("addresses", c_void_p), ("ticket", _Data), ("second_ticket", _Data), ("authorization", c_void_p),
    )  # fmt: skip


class _KeytabEntry(ctypes.Structure):
    _fields_ = (
        ("magic", c_int32), ("principal", c_void_p), ("timestamp", c_int32), ("version", c_uint32), ("key", _Key),
    )  # fmt: skip


_ReceiveHook = CFUNCTYPE(
    c_int32, c_void_p, c_void_p, c_int32, POINTER(_Data), POINTER(_Data), POINTER(_Data), POINTER(c_void_p)
)


@functools.cache
def _library() -> Any:
    try:
        found = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise KerberosError(f"the library {LIBRARY} cannot be loaded ({error})") from None
    pointers, p = POINTER(c_void_p), c_void_p
    for name, arguments in {
        "krb5_init_context": (pointers,),
        "krb5_free_context": (p,),
        "krb5_free_error_message": (p, p),
        "krb5_get_default_realm": (p, pointers),
        "krb5_free_default_realm": (p, p),
        "krb5_cc_default": (p, pointers),
        "krb5_cc_close": (p, p),
        "krb5_cc_get_full_name": (p, p, pointers),
        "krb5_cc_get_principal": (p, p, pointers),
        "krb5_cc_start_seq_get": (p, p, pointers),
        "krb5_cc_next_cred": (p, p, pointers, POINTER(_Credentials)),
        "krb5_cc_end_seq_get": (p, p, pointers),
        "krb5_free_cred_contents": (p, POINTER(_Credentials)),
        "krb5_parse_name": (p, c_char_p, pointers),
        "krb5_unparse_name": (p, p, pointers),
        "krb5_free_unparsed_name": (p, p),
        "krb5_free_principal": (p, p),
        "krb5_kt_resolve": (p, c_char_p, pointers),
        "krb5_kt_client_default": (p, pointers),
        "krb5_kt_close": (p, p),
        "krb5_kt_start_seq_get": (p, p, pointers),
        "krb5_kt_next_entry": (p, p, POINTER(_KeytabEntry), pointers),
        "krb5_kt_end_seq_get": (p, p, pointers),
        "krb5_free_keytab_entry_contents": (p, POINTER(_KeytabEntry)),
        "krb5_get_init_creds_keytab": (p, POINTER(_Credentials), p, p, c_int32, c_char_p, p),
        "krb5_get_init_creds_password": (p, POINTER(_Credentials), p, c_char_p, p, p, c_int32, c_char_p, p),
        "krb5_set_kdc_recv_hook": (p, _ReceiveHook, p),
    }.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, c_int32
    found.krb5_get_error_message.argtypes, found.krb5_get_error_message.restype = (p, c_int32), p
    return found


class _Context:
    """Context of the library, for one thread; it closes what was opened by ``open`` in the reverse order."""

    def __init__(self) -> None:
        self.library, self._stack, self._context = _library(), contextlib.ExitStack(), c_void_p()

    def __enter__(self) -> _Context:
        code = self.library.krb5_init_context(byref(self._context))
        if code:
            raise KerberosError("the Kerberos configuration cannot be read; correct krb5.conf (KRB5_CONFIG)", code)
        self._stack.callback(self.library.krb5_free_context, self._context)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library, and raise KerberosError if it fails."""
        code = getattr(self.library, name)(self._context, *arguments)
        if code:
            raise self.error(code)

    def error(self, code: int) -> KerberosError:
        """Return the error for a code, with the library's text."""
        text = self.library.krb5_get_error_message(self._context, code)
        try:
            return KerberosError((c_char_p(text).value or b"").decode(errors="replace"), code)
        finally:
            self.library.krb5_free_error_message(self._context, text)

    def open(self, name: str, *arguments: Any, close: str) -> c_void_p:
        """Return the object that a function gives in its last argument; it is released by ``close`` at the end."""
        found = c_void_p()
        self.call(name, *arguments, byref(found))
        self._stack.callback(getattr(self.library, close), self._context, found)
        return found

    def free(self, found: _Credentials) -> None:
        """Release the content of credentials."""
        self.library.krb5_free_cred_contents(self._context, byref(found))

    def watch_answers(self, hook: Any) -> None:
        """Let ``hook`` see each answer of a KDC; the caller keeps a reference to it."""
        self.library.krb5_set_kdc_recv_hook(self._context, hook, None)

    def name_of(self, principal: c_void_p) -> str:
        """Return a principal as text."""
        found = c_void_p()
        self.call("krb5_unparse_name", principal, byref(found))
        text = (ctypes.cast(found, c_char_p).value or b"").decode(errors="replace")
        self.library.krb5_free_unparsed_name(self._context, found)
        return text

    def entries(self, kind: str, container: c_void_p) -> Iterator[Any]:
        """Yield the credentials of a cache (``cc``) or the entries of a keytab (``kt``), each until the next one."""
        cursor = c_void_p()
        self.call(f"krb5_{kind}_start_seq_get", container, byref(cursor))
        try:
            while True:
                found: Any = _Credentials() if kind == "cc" else _KeytabEntry()
                order = (byref(cursor), byref(found)) if kind == "cc" else (byref(found), byref(cursor))
                step = "krb5_cc_next_cred" if kind == "cc" else "krb5_kt_next_entry"
                code = getattr(self.library, step)(self._context, container, *order)
                if code in _END:
                    return
                if code:
                    raise self.error(code)
                try:
                    yield found
                finally:
                    free = "krb5_free_cred_contents" if kind == "cc" else "krb5_free_keytab_entry_contents"
                    getattr(self.library, free)(self._context, byref(found))
        finally:
            getattr(self.library, f"krb5_{kind}_end_seq_get")(self._context, container, byref(cursor))


def ticket() -> Ticket:
    """Return the user's ticket of the ticket cache (KRB5CCNAME), which may have expired.

    Raises:
        KerberosError: there is no library, no cache, or no such ticket in it.
    """
    with _Context() as context:
        cache = context.open("krb5_cc_default", close="krb5_cc_close")
        name = context.open("krb5_cc_get_full_name", cache, close="krb5_free_unparsed_name")
        owner = context.name_of(context.open("krb5_cc_get_principal", cache, close="krb5_free_principal"))
        where = (ctypes.cast(name, c_char_p).value or b"").decode(errors="replace")
        realm = owner.rpartition("@")[2]
        for found in context.entries("cc", cache):
            if context.name_of(found.server) == f"krbtgt/{realm}@{realm}":
                renewable = found.renew_till if found.flags & _RENEWABLE else 0
                return Ticket(owner, where, _seconds(found.ends), _seconds(renewable))
    raise KerberosError(f"the ticket cache {where} has no ticket for {realm}", -1)


def default_realm() -> str:
    """Return the default realm of krb5.conf (KRB5_CONFIG). Raises KerberosError if there is none, or no library."""
    with _Context() as context:
        found = context.open("krb5_get_default_realm", close="krb5_free_default_realm")
        return (ctypes.cast(found, c_char_p).value or b"").decode(errors="replace")


def keytab_principals(path: str) -> tuple[str, ...]:
    """Return the principals that have a key in a keytab, each once. Raises KerberosError."""
    with _Context() as context:
        keytab = context.open("krb5_kt_resolve", f"FILE:{path}".encode(), close="krb5_kt_close")
        return tuple(dict.fromkeys(context.name_of(entry.principal) for entry in context.entries("kt", keytab)))


def client_keytab_principal() -> str:
    """Return the principal for which Kerberos fills an empty ticket cache by itself: the first one of the client keytab.

    That is KRB5_CLIENT_KTNAME, or the file that krb5.conf names. No KDC is contacted.

    Raises:
        KerberosError: there is no library, no such keytab, or it is empty or unreadable.
    """
    with _Context() as context:
        keytab = context.open("krb5_kt_client_default", close="krb5_kt_close")
        for entry in context.entries("kt", keytab):
            return context.name_of(entry.principal)
    raise KerberosError("the client keytab is empty", -1)


def obtain(principal: str, keytab: str) -> None:
    """Obtain a ticket with the key of a keytab, and discard it. Raises KerberosError, for instance for an old key."""
    with _Context() as context:
        client = context.open("krb5_parse_name", principal.encode(), close="krb5_free_principal")
        table = context.open("krb5_kt_resolve", f"FILE:{keytab}".encode(), close="krb5_kt_close")
        found = _Credentials()
        context.call("krb5_get_init_creds_keytab", byref(found), client, table, 0, None, None)
        context.free(found)


def kdc_time(principal: str) -> float:
    """Return the clock of a principal's KDC, seconds since 1970, in whole seconds.

    A ticket for a service that does not exist is requested, without a password: the KDC's refusal has its time, and does
    not count as a failed login.

    Raises:
        KerberosError: no KDC answers, or its answer has no time.
    """
    times: list[float] = []

    def received(*arguments: Any) -> int:
        answer = arguments[5]
        if answer:
            content = ctypes.string_at(answer.contents.data, answer.contents.length)
            times.extend(server_times(content))
        return int(arguments[2])

    hook = _ReceiveHook(received)
    with _Context() as context:
        client = context.open("krb5_parse_name", principal.encode(), close="krb5_free_principal")
        context.watch_answers(hook)
        found = _Credentials()
        try:
            context.call("krb5_get_init_creds_password", byref(found), client, None, None, None, 0, _NO_SERVICE, None)
            context.free(found)
        except KerberosError:
            if not times:
                raise
    if not times:
        raise KerberosError("the answer of the KDC has no time", -1)
    return times[-1]


def server_times(message: bytes) -> list[float]:
    """Return the server's time in a KRB-ERROR message, seconds since 1970; none for other messages. Pure.

    Digits that are no date, such as a thirteenth month, are skipped.
    """
    times = list[float]()
    for found in _SERVER_TIME.findall(message) if message[:1] == b"\x7e" else ():
        with contextlib.suppress(ValueError):
            times.append(float(calendar.timegm(time.strptime(found.decode(), "%Y%m%d%H%M%S"))))
    return times


def _seconds(timestamp: int) -> float:
    """Return a time of the library, whose 32 bits are unsigned since 2038."""
    return float(timestamp % (1 << 32))
