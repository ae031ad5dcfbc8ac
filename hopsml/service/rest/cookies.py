"""Cookies of a server: only it reads them, only its own pages send them, and over TLS alone where it is reached so."""

from __future__ import annotations

import hashlib
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Scope


def session(server: str) -> str:
    """The name of the cookie with a token; cookies know no ports, and two servers must not overwrite each other's."""
    return "hopsml_ui_" + hashlib.sha256(server.encode()).hexdigest()[:12]


def header(
    name: str, value: str, scope: Scope, *, site: str = "Strict", lasts_s: int | None = None
) -> tuple[bytes, bytes]:
    """Sets one; ``lasts_s``: None to the end of the browser, 0 to end it now."""
    age = "" if lasts_s is None else f"; Max-Age={lasts_s}"
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return b"set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite={site}{age}{secure}".encode()


def value(headers: Headers, name: str) -> str:
    """What a browser sends; empty where it sends none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""
