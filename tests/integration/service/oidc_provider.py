"""Real OpenID provider on this machine (oidc-provider-mock), with PKCE checks, and wrong answers on request."""

from __future__ import annotations

import base64
import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT, SECRET = "hopsml", "a secret of this client's"
Claims = dict[str, Any]


@dataclass
class RunningProvider:
    """Running provider; ``lie`` replaces the ID token, given the correct claims; ``seen`` has the client's requests."""

    issuer: str = ""
    lie: Callable[[Claims], str] | None = None
    seen: list[dict[str, str]] = field(default_factory=list)
    challenges: set[str] = field(default_factory=set)
    key: dict[str, Any] = field(default_factory=dict)  # its signing key
    moved: str = ""  # redirect target of its token endpoint

    def authorized(self, there: str, sub: str) -> str:
        """Sign a user in at the provider's page and return the address that the browser is redirected to."""
        answer = httpx.post(there, data={"sub": sub} if sub else {"action": "deny"})
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]


def signed(claims: Claims, key: RSAKey, algorithm: str = "RS256") -> str:
    """Return an ID token signed with a key."""
    return jwt.encode({"alg": algorithm, **({"kid": key.kid} if key.kid else {})}, claims, key, algorithms=[algorithm])


@contextmanager
def running(**users: Claims) -> Iterator[RunningProvider]:
    """Run a provider with the given users during the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of authlib, about itself
        import oidc_provider_mock
        from oidc_provider_mock import _server, _storage

    made = RunningProvider()
    app = oidc_provider_mock.app(
        user_claims=[oidc_provider_mock.User(sub=name, claims=claims) for name, claims in users.items()],
        require_nonce=True,
    )
    import flask

    @app.before_request
    def check_request() -> Any:
        made.key = _storage.storage.jwk.as_dict(is_private=True)
        if flask.request.path == "/oauth2/authorize":
            query = flask.request.args
            assert query["code_challenge_method"] == "S256" and query["client_id"] == CLIENT
            made.challenges.add(query["code_challenge"])
        if flask.request.path != "/oauth2/token":
            return None
        if made.moved:
            return flask.redirect(made.moved, 307)
        made.seen.append(dict(flask.request.form))
        digest = hashlib.sha256(flask.request.form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        credentials = flask.request.authorization
        is_client = credentials is not None and (credentials.username, credentials.password) == (CLIENT, SECRET)
        if challenge not in made.challenges or not is_client:
            return flask.jsonify({"error": "invalid_grant", "error_description": "nothing of ours"}), 400
        return None

    @app.after_request
    def answer(response: Any) -> Any:
        if flask.request.path == "/oauth2/token" and response.status_code == 200 and made.lie is not None:
            content = response.get_json()
            body = content["id_token"].split(".")[1]
            claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            response.set_data(json.dumps({**content, "id_token": made.lie(claims)}))
        return response

    with _server._threaded_server(app=app, poll_interval=0.02) as server:
        made.issuer = f"http://localhost:{server.server_port}"
        yield made
