"""Cookies of a server: scripts cannot read them, other sites cannot send them, and other ports of the host cannot set them.

The last holds over TLS, by the prefix ``__Host-``: a browser takes such a cookie from an encrypted answer of this very host
only. Ports of a host share all other cookies, also those of servers that somebody else runs there.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Scope

MOST_VALUES = 8


def session(server: str) -> str:
    """The name of the cookie with a token; cookies know no ports, and two servers must not overwrite each other's."""
    return "hopsml_ui_" + hashlib.sha256(server.encode()).hexdigest()[:12]


def header(
    name: str, value: str, scope: Scope, *, site: str = "Strict", lasts_s: int | None = None
) -> tuple[bytes, bytes]:
    """Sets one; ``lasts_s``: None to the end of the browser, 0 to end it now."""
    age = "" if lasts_s is None else f"; Max-Age={lasts_s}"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return b"set-cookie", f"{_full(name, scope)}={value}; Path=/; HttpOnly; SameSite={site}{age}{secure}".encode()


def values(headers: Headers, name: str, scope: Scope) -> list[str]:
    """The different values that a browser sends, at most ``MOST_VALUES``; of several another server has set some.

    Cookies of other names, whatever they contain, do not matter.
    """
    wanted = _full(name, scope)
    pairs = (pair.strip().partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
    return list(dict.fromkeys(value for key, _, value in pairs if key == wanted and value))[:MOST_VALUES]


def _full(name: str, scope: Scope) -> str:
    return f"__Host-{name}" if scope.get("scheme") == "https" else name
