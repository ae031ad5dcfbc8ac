"""Cookies of a server: inaccessible to scripts, and not sent with requests from other sites.

Over TLS other ports of the host cannot set them, because of the prefix ``__Host-``: a browser accepts such a cookie
from an encrypted response of this host only. All other cookies are shared by all ports of a host, including other
users' servers.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Scope

MOST_VALUES = 8


def session(server: str) -> str:
    """Return the name of a server's session cookie, which differs by server, as cookies do not distinguish ports."""
    return "hopsml_ui_" + hashlib.sha256(server.encode()).hexdigest()[:12]


def header(
    name: str, value: str, scope: Scope, *, site: str = "Strict", lasts_s: int | None = None
) -> tuple[bytes, bytes]:
    """Return the response header that sets a cookie.

    Args:
        name: Name of the cookie.
        value: Its value.
        scope: ASGI scope of the request.
        site: Value of ``SameSite``.
        lasts_s: Lifetime in seconds; None until the browser ends, 0 to delete the cookie.
    """
    age = "" if lasts_s is None else f"; Max-Age={lasts_s}"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return b"set-cookie", f"{_full(name, scope)}={value}; Path=/; HttpOnly; SameSite={site}{age}{secure}".encode()


def values(headers: Headers, name: str, scope: Scope) -> list[str]:
    """Return the different values that a browser sends for a cookie, at most ``MOST_VALUES``.

    If there are several, another server has set some of them. Cookies of other names are ignored, whatever they
    contain.
    """
    wanted = _full(name, scope)
    pairs = (pair.strip().partition("=") for line in headers.getlist("cookie") for pair in line.split(";"))
    return list(dict.fromkeys(value for key, _, value in pairs if key == wanted and value))[:MOST_VALUES]


def _full(name: str, scope: Scope) -> str:
    """Return the cookie's name, with the prefix ``__Host-`` over TLS."""
    return f"__Host-{name}" if scope.get("scheme") == "https" else name
