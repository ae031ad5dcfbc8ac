"""Delegation tokens of a Kerberized cluster for tests: obtained by WebHDFS, written as Hadoop's token file, renewed."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopsml.core import delegation_tokens as tokens
from hopsml.core.delegation_tokens import Credentials, Token
from tests.helpers import scenarios
from tools.hadoop.rest import TIMEOUT_S, Web


def obtain(cluster: Any, user: str = "alice") -> Credentials:
    """Return a new HDFS token of a user, with the user's ticket; nobody but the user can renew it."""
    web, base = _webhdfs(cluster, user)
    text = web.get_json(f"{base}?op=GETDELEGATIONTOKEN&renewer={user}")["Token"]["urlString"]
    wire = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    # the four fields of a token, as in a file but without an alias
    (found,) = tokens.parse(b"HDTS\0\x01\0" + wire + b"\0").tokens
    scenarios.watch(cluster)
    scenarios.keep_secret(found.password)
    authority = cluster.namenode_url.removeprefix("hdfs://")
    service = authority if ":" in authority else f"ha-hdfs:{authority}"
    return Credentials((Token(service, found.identifier, found.password, tokens.HDFS_KIND, service),))


def cancel(cluster: Any, credentials: Credentials, user: str = "alice") -> None:
    """Revoke the tokens, so that HDFS refuses them at once."""
    _change(cluster, "CANCELDELEGATIONTOKEN", credentials, user)


def renew(cluster: Any, credentials: Credentials, user: str = "alice") -> None:
    """Renew the tokens; OSError if HDFS refuses, as it does at the end of their maximum life."""
    _change(cluster, "RENEWDELEGATIONTOKEN", credentials, user)


@contextmanager
def kept_alive(cluster: Any, path: Path, every_s: float, user: str = "alice") -> Iterator[Credentials]:
    """Write a new token to the file, and renew it every ``every_s`` seconds, until it is revoked."""
    held = obtain(cluster, user)
    tokens.write(path, held)

    def again() -> None:
        with contextlib.suppress(OSError):
            renew(cluster, held, user)

    with _repeating(again, every_s):
        yield held


def _webhdfs(cluster: Any, user: str) -> tuple[Web, str]:
    """Return a client with the user's ticket, and the beginning of WebHDFS's URLs at the active NameNode."""
    web: Web = replace(cluster.web, ticket=cluster.kdc.environment(user))
    return web, f"{web.url(cluster.state.ports[cluster.active_namenode]['http'])}/webhdfs/v1/"


def _change(cluster: Any, operation: str, credentials: Credentials, user: str) -> None:
    web, base = _webhdfs(cluster, user)
    for token in credentials.tokens:
        web.negotiated(f"{base}?op={operation}&token={token.as_text()}", TIMEOUT_S, "PUT")


@contextmanager
def renewing(cluster: Any, path: Path, every_s: float, user: str = "alice") -> Iterator[list[Exception]]:
    """Replace the token file by a new token every ``every_s`` seconds, as a program beside the driver would.

    Yields a list of what has prevented it, to which failures are added.
    """
    tokens.write(path, obtain(cluster, user))
    failures: list[Exception] = []

    def renew() -> None:
        try:
            tokens.write(path, obtain(cluster, user))
        except (OSError, LookupError, ValueError) as error:
            failures.append(error)

    with _repeating(renew, every_s):
        yield failures


@contextmanager
def _repeating(act: Callable[[], None], every_s: float) -> Iterator[None]:
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(every_s):
            act()

    thread = threading.Thread(target=repeat, name="renewing-tokens")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
