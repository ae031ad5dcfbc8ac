"""Tests of signing in by a real provider: round trip, wrong answers, and outages."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import OctKey, RSAKey

from hopsml.service.rest.limited import Limits, Rate
from hopsml.service.rest.service_application import service_application
from hopsml.service.sign_in import Provider, SignInRules
from hopsml.service.store.accounts import SIGNED_IN, AuditLog, Role, Tokens
from tests.helpers.service.served import Served
from tests.integration.service.oidc_provider import CLIENT, SECRET, Claims, RunningProvider, running, signed
from tests.integration.service.stage import Stage

pytestmark = pytest.mark.local

HERE = "https://jobs.example.org/"
ANA = {"preferred_username": "ana", "groups": ["ml", "ml-operators", "other"]}


@pytest.fixture(scope="module")
def started() -> Iterator[RunningProvider]:
    """Start one provider for all tests of this file."""
    with running(ana=ANA, ben={"preferred_username": "ben"}, nobody={"groups": ["ml"]}) as provider:
        yield provider


@pytest.fixture
def provider(started: RunningProvider) -> RunningProvider:
    """Return the provider, reset to correct answers."""
    started.lie, started.moved = None, ""
    started.seen.clear()
    return started


def rules(issuer: str, **more: Any) -> SignInRules:
    """Return sign-in rules as in a file."""
    roles = {"ml": "user", "ml-operators": "operator"}
    known = {"issuer": issuer, "client_id": CLIENT, "roles_claim": "groups", "roles": roles}
    return SignInRules.model_validate({**known, "user_claim": "preferred_username", **more})


class BrowserSession:
    """Browser session with cookies, at a service with a provider."""

    def __init__(self, served: Served, issuer: str, strangers: float = 1000.0, **more: Any) -> None:
        sign_in_provider = Provider(rules(issuer, **more), SECRET, f"{HERE}sign-in/back")
        limits = Limits(strangers=Rate(1.0, strangers))
        self._app = service_application(served.jobs, served.project, served.streams, "x", limits, sign_in_provider)
        self.tokens, self.audit = Tokens(served.jobs.store), AuditLog(served.jobs.store)
        self.cookies, self.session = httpx.Cookies(), f"__Host-{served.cookie}"  # over TLS

    def ask(self, path: str, method: str = "GET", **more: Any) -> httpx.Response:
        """Send one request and store cookies."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=HERE, cookies=self.cookies) as asking:
                answer = await asking.request(method, path, **more)
                self.cookies = asking.cookies
                return answer

        return asyncio.run(ask())

    def signs_in(self, provider: RunningProvider, sub: str) -> httpx.Response:
        """Sign a user in: to the provider and back."""
        there = self.ask("sign-in")
        assert there.status_code == 303, there.text
        return self.ask(provider.authorized(there.headers["location"], sub))

    def made(self) -> list[tuple[str, Role]]:
        """Return users and roles of tokens created by signing in."""
        return [(row.user, row.role) for row in self.tokens.all() if row.label == SIGNED_IN]


def test_user_signs_in_and_out(served: Served, provider: RunningProvider) -> None:
    tab = BrowserSession(served, provider.issuer, lasts="2h")
    anonymous = tab.ask("")
    assert (
        anonymous.status_code == 401 and 'href="sign-in"' in anonymous.text and tab.ask("style.css").status_code == 200
    )
    assert "sign in" in tab.ask("api/about").json()["remedy"]
    there = tab.ask("sign-in")
    query = parse_qs(urlsplit(there.headers["location"]).query)
    assert query["redirect_uri"] == [f"{HERE}sign-in/back"] and query["scope"] == ["openid profile email"]
    cookie = there.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Lax", "Max-Age=600", "Secure"))
    assert not any(query[name][0] in cookie for name in ("state", "nonce"))  # sealed
    back = tab.ask(provider.authorized(there.headers["location"], "ana"))
    assert back.status_code == 200 and "url=../" in back.text, back.text
    session, over = back.headers.get_list("set-cookie")
    assert all(word in session for word in ("HttpOnly", "SameSite=Strict", "Max-Age=7200", "Secure"))
    assert "Max-Age=0" in over
    about = tab.ask("api/about").json()
    assert (about["user"], about["role"], about["signs_in"]) == ("oidc:ana", "operator", True)
    (row,) = [row for row in tab.tokens.all() if row.label == SIGNED_IN]
    assert row.expires_s is not None and row.expires_s - row.created_s == 7200
    token = tab.cookies[tab.session]
    other = {"cookie": f"{tab.session}={token}", "sec-fetch-site": "cross-site"}
    assert tab.ask("sign-out", "POST", headers=other).status_code == 403 and tab.made() == [("oidc:ana", Role.OPERATOR)]
    assert tab.ask("sign-out", "POST").status_code == 204
    assert tab.session not in tab.cookies and tab.ask("api/about").status_code == 401
    assert tab.tokens.caller(token, time.time()) is None
    refused = [(one.user, one.action, one.target) for one in tab.audit.page().entries if one.action.startswith("sign ")]
    assert refused == [("oidc:ana", "sign out", row.id), ("oidc:ana", "sign in", row.id)]


def test_user_without_a_mapped_role_is_a_viewer(served: Served, provider: RunningProvider) -> None:
    tab = BrowserSession(served, provider.issuer)
    assert tab.signs_in(provider, "ben").status_code == 200
    assert tab.made() == [("oidc:ben", Role.VIEWER)]
    assert tab.ask("api/v1/jobs/1/cancel", "POST").status_code in (403, 404)
    assert tab.ask("api/v1/tokens").status_code == 403


def test_user_without_a_name_claim_is_refused(served: Served, provider: RunningProvider) -> None:
    tab = BrowserSession(served, provider.issuer)
    back = tab.signs_in(provider, "nobody")
    assert back.status_code == 403 and "preferred_username" in back.text and not tab.made()


def test_signing_out_does_not_revoke_a_created_token(served: Served, provider: RunningProvider) -> None:
    tab = BrowserSession(served, provider.issuer)
    tab.ask(f"?token={served.tokens[Role.USER]}")
    assert tab.session in tab.cookies
    assert tab.ask("sign-out", "POST").status_code == 204 and tab.session not in tab.cookies
    assert tab.tokens.caller(served.tokens[Role.USER], time.time()) is not None


def test_address_with_a_foreign_token_does_not_replace_a_session(served: Served) -> None:
    tab = BrowserSession(served, "https://login.example.org")
    tab.ask(f"?token={served.tokens[Role.USER]}")
    session = tab.cookies[tab.session]
    sent = f"?token={served.tokens[Role.OPERATOR]}&a=b"
    answer = tab.ask(sent)
    assert answer.status_code == 303 and answer.headers["location"] == "./?a=b"
    assert tab.cookies[tab.session] == session and tab.ask("api/about").json()["user"] == "user"
    again = Tokens(served.jobs.store).create("user", Role.USER, time.time())
    tab.ask(f"?token={again}")
    assert tab.cookies[tab.session] == again, "one of the same person's"
    tab.ask("sign-out", "POST")
    tab.ask(sent)
    assert tab.ask("api/about").json()["user"] == "operator"


def test_link_from_another_site_is_forwarded_by_a_page_of_this_server(served: Served) -> None:
    """A browser sends no cookie with a link from another site, so the replaced session would be unknown."""
    tab = BrowserSession(served, "https://login.example.org")
    for site in ("cross-site", "same-site"):
        answer = tab.ask(f'?token={served.tokens[Role.USER]}&x="><b>', headers={"sec-fetch-site": site})
        assert answer.status_code == 200 and "set-cookie" not in answer.headers
        assert f"url=./?token={served.tokens[Role.USER]}&amp;x=" in answer.text and "<b>" not in answer.text
    tab.ask(f"?token={served.tokens[Role.USER]}", headers={"sec-fetch-site": "same-origin"})
    assert tab.ask("api/about").json()["user"] == "user"


@pytest.mark.parametrize("scheme", ["Basic dXNlcjp4", "Digest x", "x", "Negotiate", ""])
def test_authorization_scheme_other_than_bearer_does_not_bypass_the_origin_check(served: Served, scheme: str) -> None:
    tab = BrowserSession(served, "https://login.example.org")
    tab.ask(f"?token={served.tokens[Role.USER]}")
    sent = {"authorization": scheme, "sec-fetch-site": "cross-site", "origin": "https://evil.example.org"}
    assert tab.ask("api/v1/jobs/1/cancel", "POST", headers=sent).status_code == 403
    bearer = {**sent, "authorization": f"bearer {served.tokens[Role.USER]}"}
    assert tab.ask("api/v1/jobs/1/cancel", "POST", headers=bearer).status_code == 404, "a program's own token"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_cookies_of_other_servers_on_the_host_do_not_affect_a_session(served: Served, scheme: str) -> None:
    """Ports share cookies: of two with one name, the server cannot tell which one it has set."""
    name = served.cookie if scheme == "http" else f"__Host-{served.cookie}"
    mine, evil = (f"{name}={served.tokens[role]}" for role in (Role.USER, Role.OPERATOR))
    strange = 'prefs={"a": [1, "b c"]}; =; x; \u00fc=\u00fc; bad[name]=1'
    plain = f"{served.cookie}={served.tokens[Role.OPERATOR]}"

    def user(cookie: str) -> str:
        headers = {"authorization": "", "cookie": cookie.encode()}

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(served.app)
            async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://service") as asking:
                return await asking.get("/api/about", headers=headers)

        return str(asyncio.run(ask()).json().get("user", ""))

    assert user(mine) == user(f"{mine}; {mine}") == user(f"{strange}; {mine}") == user(f"{mine}; {strange}") == "user"
    assert user(f"{mine}; {evil}") == user(f"{evil}; {mine}") == user(strange) == ""
    for more in (f"{mine}; {name}=garbage", f"{name}=garbage; {mine}; {name}="):
        assert user(more) == "user", "garbage locks nobody out"
    if scheme == "https":
        assert user(plain) == "" and user(f"{plain}; {mine}") == "user", "set over an unencrypted port"


def _with(**other: Any) -> Callable[[Claims], Claims]:
    return lambda claims: {name: value for name, value in {**claims, **other}.items() if value is not None}


LIES = {
    "issuer": _with(iss="http://localhost:1"),
    "audience": _with(aud="somebody else's client"),
    "audiences": _with(aud=[CLIENT, "other"], azp="other"),
    "party": _with(aud=[CLIENT, "other"]),
    "expired": _with(exp=1_700_000_000),
    "no expiry": _with(exp=None),
    "future": _with(iat=4_000_000_000, nbf=4_000_000_000),
    "nonce": _with(nonce="of another sign-in"),
    "no nonce": _with(nonce=None),
    "no subject": _with(sub=None),
    "hash of the access token": _with(at_hash="AAAAAAAAAAAAAAAAAAAAAA"),
}


def own_key(provider: RunningProvider) -> RSAKey:
    """Return the provider's signing key, with which only one claim is wrong."""
    httpx.get(f"{provider.issuer}/jwks")
    return RSAKey.import_key(provider.key)


def test_invalid_claims_are_refused(served: Served, provider: RunningProvider) -> None:
    key = own_key(provider)
    tab = BrowserSession(served, provider.issuer)
    for name, lie in LIES.items():
        provider.lie = lambda claims, lie=lie: signed(lie(claims), key)  # type: ignore[misc]
        back = tab.signs_in(provider, "ana")
        assert back.status_code == 403 and "ID token" in back.text, (name, back.text)
        assert not tab.made() and tab.session not in tab.cookies
    provider.lie = lambda claims: signed(claims, key)  # only the wrong tokens were refused
    assert tab.signs_in(provider, "ana").status_code == 200


def _unsigned(claims: Claims, key: RSAKey) -> str:
    body = signed(claims, key).split(".")[1]
    return f"eyJhbGciOiJub25lIn0.{body}."


def _by_secret(claims: Claims, key: RSAKey) -> str:
    return signed(claims, OctKey.import_key(SECRET + "." * 40), "HS256")  # type: ignore[arg-type]


def _by_another(claims: Claims, key: RSAKey) -> str:
    return signed(claims, RSAKey.generate_key(2048, {"kid": key.kid} if key.kid else None))


def _changed(claims: Claims, key: RSAKey) -> str:
    head, _, name = signed(claims, key).split(".")
    return f"{head}.{signed({**claims, 'groups': ['ml-admins']}, key).split('.')[1]}.{name}"


SIGNATURES = (_unsigned, _by_secret, _by_another, _changed, lambda claims, key: "no token")


def test_invalid_signatures_are_refused(served: Served, provider: RunningProvider) -> None:
    key = own_key(provider)
    tab = BrowserSession(served, provider.issuer)
    for made in SIGNATURES:
        provider.lie = lambda claims, made=made: made(claims, key)  # type: ignore[misc]
        back = tab.signs_in(provider, "ana")
        assert back.status_code == 403 and "ID token" in back.text, (made, back.text)
    assert not tab.made()


def test_callback_is_accepted_only_for_its_browser_and_sign_in(served: Served, provider: RunningProvider) -> None:
    tab, other = BrowserSession(served, provider.issuer), BrowserSession(served, provider.issuer)
    back = provider.authorized(tab.ask("sign-in").headers["location"], "ana")
    assert other.ask(back).status_code == 400  # that browser has begun nothing
    other.ask("sign-in")
    assert other.ask(back).status_code == 403  # something else
    cookie = tab.cookies
    assert tab.ask(f"{back}x").status_code == 403 and tab.ask(f"{back}&iss=http://else.where").status_code == 403
    assert not provider.seen  # none of them caused a request to the provider
    tab.cookies = cookie
    assert tab.ask(back).status_code == 200
    tab.cookies = cookie
    assert tab.ask(back).status_code in (400, 502) and len(tab.made()) == 1  # a code counts once
    stolen = provider.authorized(BrowserSession(served, provider.issuer).ask("sign-in").headers["location"], "ben")
    tab.ask("sign-in")
    assert tab.ask(stolen).status_code == 403 and len(tab.made()) == 1


def test_code_is_not_sent_to_a_redirected_token_endpoint(served: Served, provider: RunningProvider) -> None:
    """A redirecting token endpoint could have the code and the client secret sent to any address."""
    tab = BrowserSession(served, provider.issuer)
    back = provider.authorized(tab.ask("sign-in").headers["location"], "ana")
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(5.0)

        def listen() -> None:
            with contextlib.suppress(OSError), elsewhere.accept()[0] as connection:
                received.append(connection.recv(1 << 16))

        listening = threading.Thread(target=listen)
        listening.start()
        provider.moved = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/"
        answer = tab.ask(back)
        elsewhere.shutdown(socket.SHUT_RDWR)
        listening.join()
    provider.moved = ""
    assert answer.status_code == 502 and not received and not tab.made()


def test_sign_in_started_by_another_browser_is_not_accepted(served: Served, provider: RunningProvider) -> None:
    """An attacker plants the cookie of their own sign-in, and sends a link with their code."""
    eve, tab = BrowserSession(served, provider.issuer), BrowserSession(served, provider.issuer)
    eve._app = tab._app
    code = provider.authorized(eve.ask("sign-in").headers["location"], "ben")
    mine = provider.authorized(tab.ask("sign-in").headers["location"], "ana")
    pending = f"{tab.session}_sign_in"
    both = f"{pending}={tab.cookies[pending]}; {pending}={eve.cookies[pending]}"
    tab.cookies = httpx.Cookies()
    assert tab.ask(code, headers={"cookie": both}).status_code == 400 and not tab.made()
    garbage = f"{pending}=x; {both.partition(';')[0]}"
    assert tab.ask(mine, headers={"cookie": garbage}).status_code == 200 and tab.made() == [("oidc:ana", Role.OPERATOR)]


def test_refusal_by_the_provider_is_shown_as_escaped_text(served: Served, provider: RunningProvider) -> None:
    tab = BrowserSession(served, provider.issuer)
    there = tab.ask("sign-in").headers["location"]
    state = parse_qs(urlsplit(there).query)["state"][0]
    denied = tab.ask(f"{provider.authorized(there, '')}&state={state}")  # which this provider leaves out
    assert denied.status_code == 403 and "access_denied" in denied.text and "Sign in again" in denied.text
    refused = tab.ask(f"sign-in/back?error=<script>alert(1)</script>&state={state}")
    assert "<script" not in refused.text and "&lt;script&gt;" in refused.text
    assert "default-src 'none'" in refused.headers["content-security-policy"]


def test_sign_in_attempts_are_limited(served: Served, provider: RunningProvider) -> None:
    tab = BrowserSession(served, provider.issuer, strangers=2.0)
    assert [tab.ask("sign-in").status_code for _ in range(3)] == [303, 303, 429]


def test_tokens_work_while_the_provider_is_unreachable(served: Served) -> None:
    with running(ana=ANA) as provider:
        issuer, tab = provider.issuer, BrowserSession(served, provider.issuer)
        back = provider.authorized(tab.ask("sign-in").headers["location"], "ana")
    answer = tab.ask(back)
    assert answer.status_code == 502 and issuer in answer.text and "tokens still work" in answer.text
    away = BrowserSession(served, issuer)
    assert away.ask("sign-in").status_code == 502
    assert away.ask(f"?token={served.tokens[Role.USER]}").status_code == 303
    assert away.ask("api/about").json()["user"] == "user"
    assert served.ask("GET", "jobs").status_code == 200


def test_issuer_other_than_the_configured_one_is_refused(served: Served, provider: RunningProvider) -> None:
    lying = BrowserSession(served, f"{provider.issuer}/")  # it calls itself without the stroke
    answer = lying.ask("sign-in")
    assert answer.status_code == 502 and "calls itself" in answer.text


@pytest.mark.variant
def test_sign_in_works_in_a_browser(tmp_path: Path, browser: Any, provider: RunningProvider) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    (tmp_path / "sign-in.yaml").write_text(
        f"{{issuer: {provider.issuer}, client_id: {CLIENT}, client_secret_file: {secret}, roles_claim: groups, "
        "roles: {ml: user}}"
    )
    stage = Stage(tmp_path)
    context = browser.new_context()
    try:
        context.route("**/cdn.jsdelivr.net/**", lambda route: route.fulfill(body="", content_type="text/css"))
        page = context.new_page()
        page.goto(stage.page("ana").partition("?")[0])
        page.get_by_role("link", name="Sign in").click()
        page.get_by_role("button", name="ana").click()  # at the provider's, which is another site
        page.get_by_role("heading", name="Overview").wait_for()
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("link", name="Sign in").wait_for()
    finally:
        context.close()
        stage.close()
