"""Tests of the decisions of SPNEGO; tests/integration/core/test_kerberos.py has a KDC and servers that verify tickets."""

from __future__ import annotations

import base64
import threading
from pathlib import Path

import pytest

from hopsml.core import hadoop_http, spnego
from hopsml.core.gssapi import GssError
from hopsml.core.spnego import Exchange, SignInError, negotiate_token, sign_in_error
from tests.helpers import clock

pytestmark = pytest.mark.fast

TOKEN = base64.b64encode(b"a token").decode()


@pytest.mark.parametrize(
    ("challenges", "expected"),
    [
        ([], None),
        (["Basic realm=x"], None),
        (["Negotiated"], None),
        (["Negotiate"], b""),
        (["negotiate"], b""),
        (["PseudoAuth", "Negotiate"], b""),
        (['Basic realm="x", Negotiate'], b""),
        ([f"Negotiate {TOKEN}"], b"a token"),
        ([f"Negotiate {TOKEN}, Basic realm=x"], b"a token"),
        (["Negotiate abc"], b""),  # base64 of an impossible length
    ],
)
def test_token_is_read_from_the_challenges(challenges: list[str], expected: bytes | None) -> None:
    assert negotiate_token(challenges) == expected


@pytest.mark.parametrize(
    ("error", "texts", "is_passing"),
    [
        (GssError("the library x cannot be loaded (no such file)"), ["install", "libgssapi-krb5-2"], False),
        (GssError("No Kerberos credentials available", 7 << 16, -1765328243), ["kinit", "KRB5CCNAME"], False),
        (GssError("expired", 11 << 16, 0), ["kinit"], False),
        (GssError("Ticket expired", 13 << 16, -1765328352), ["kinit"], False),
        (GssError("Server HTTP/a not found", 13 << 16, -1765328377), ["full host name", "HTTP/HOST"], False),
        (GssError("Clock skew too great", 13 << 16, -1765328347), ["synchronise the clocks"], False),
        (GssError("Cannot contact any KDC", 13 << 16, -1765328228), ["KRB5_CONFIG", "running"], True),
        (GssError("Cannot find KDC", 13 << 16, -1765328230), ["KRB5_CONFIG", "running"], True),
        (GssError("something else", 13 << 16, -1), ["KRB5_TRACE"], False),
    ],
)
def test_error_of_kerberos_has_its_remedy(error: GssError, texts: list[str], is_passing: bool) -> None:
    found = sign_in_error("http://rm:8088", error)
    assert str(found).startswith(f"http://rm:8088 requires Kerberos: {error}; ") and found.is_passing is is_passing
    assert all(text in str(found) for text in texts)


def answered(url: str, *cookies: str) -> None:
    """Let a service set cookies."""
    assert Exchange(url, 1.0).answered(200, [], cookies) is None


def test_cookie_belongs_to_one_service_and_one_ticket_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spnego, "_cookies", {})
    monkeypatch.setenv("KRB5CCNAME", "FILE:/a")
    answered("http://host:1/ws?x=1", 'hadoop.auth="u=alice&s=1"; Path=/; HttpOnly', "other=2")
    assert Exchange("http://HOST:1/other", 1.0).headers() == {"Cookie": 'hadoop.auth="u=alice&s=1"'}
    for url in ("http://host:2/ws", "https://host:1/ws", "http://other:1/ws"):
        assert Exchange(url, 1.0).headers() == {}
    monkeypatch.setenv("KRB5CCNAME", "FILE:/b")
    assert Exchange("http://host:1/ws", 1.0).headers() == {}
    monkeypatch.setenv("KRB5CCNAME", "FILE:/a")
    answered("http://host:1/ws", "hadoop.auth=; Path=/; Expires=Thu, 01-Jan-1970 00:00:00 GMT")
    assert Exchange("http://host:1/ws", 1.0).headers() == {}


def test_service_without_negotiate_gets_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    exchange = Exchange("http://host:1/ws", 1.0)
    assert exchange.headers() == {} and exchange.answered(401, ["Basic realm=x"], []) is None


def test_wait_for_a_kdc_has_a_limit() -> None:
    answer = threading.Event()
    try:
        with pytest.raises(SignInError, match=r"no KDC answered within 0\.05 s") as failed:
            spnego.within(0.05, lambda: answer.wait(clock.WAIT_S), "http://rm:8088")
    finally:
        answer.set()
    assert failed.value.is_passing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("There is currently no active RM", "There is currently no active RM"),
        ('{"a": "<b>"}', '{"a": "<b>"}'),
        (
            "<html><head><title>Error 401</title><style>p {x: 1}</style></head><body>\n<h2>HTTP ERROR 401</h2><!-- a -->"
            "<p>Authentication\nrequired</p></body></html>",
            "HTTP ERROR 401 Authentication required",
        ),
    ],
)
def test_message_has_no_html(text: str, expected: str) -> None:
    assert hadoop_http.visible_text(text) == expected
    assert len(hadoop_http.visible_text("x " * 10_000)) <= 300


def test_page_with_very_many_open_tags_is_shortened_first() -> None:
    page = "<html>" + "<style " * 200_000 + "<!-- " * 200_000
    assert len(hadoop_http.visible_text(page)) <= 300


@pytest.mark.parametrize("challenge", ["Negotiate A===", "Negotiate AB=C", "Negotiate A", "Negotiate ===="])
def test_challenge_with_an_impossible_token_is_one_without_a_token(challenge: str) -> None:
    assert not negotiate_token([challenge])
