"""Sign-in by an OpenID provider, with the rules of ``hopsml server --sign-in sign-in.yaml``.

issuer: https://login.example.org/realms/team
client_id: hopsml
client_secret_file: /etc/hopsml/client-secret      # or $HOPSML_SIGN_IN_SECRET
user_claim: preferred_username                     # default: sub, the only claim that users cannot choose
user_prefix: "team:"                               # default: "oidc:"
roles_claim: groups
roles: {ml-operators: operator, ml: user}          # default: viewer

The provider's claims give user and role. The state of a sign-in in progress is encrypted in a cookie of the browser;
thus unauthenticated clients use no memory of the server.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from hopsml.core import proxies
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, PermissionRefused, ServiceError
from hopsml.service import rules_files
from hopsml.service.spec.fields import Duration
from hopsml.service.store.accounts import Caller, Role

if TYPE_CHECKING:
    from authlib.integrations.requests_client import OAuth2Session


SECRET = Settings.sign_in_secret.name
LOOPBACK = ("127.0.0.1", "::1", "localhost")
FIELDS = (
    "a file of this kind has issuer, client_id, client_secret_file, scopes, user_claim, user_prefix, roles_claim, roles, "
    "lasts; see docs/how-to/sign-in.md"
)


def is_safe_url(address: str) -> bool:
    """Return True if requests to this URL are encrypted, or remain on this machine."""
    try:
        there = urlsplit(address)
    except ValueError:
        return False
    return there.hostname in LOOPBACK if there.scheme == "http" else there.scheme == "https" and bool(there.hostname)


class SignInRules(BaseModel):
    """Rules of sign-in by a provider; ``lasts`` is the lifetime of a session.

    ``user_prefix`` precedes all user names, so that they differ from those that administrators assign with tokens: a
    user name owns its jobs and secrets.
    """

    model_config = ConfigDict(extra="forbid")

    issuer: str
    client_id: str = Field(min_length=1)
    client_secret_file: Path | None = None
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    user_claim: str = Field(default="sub", min_length=1)
    user_prefix: str = Field(default="oidc:", max_length=100)
    roles_claim: str = ""
    roles: dict[str, Literal["viewer", "user", "operator", "admin"]] = {}
    lasts: Duration = 12 * 3600

    @field_validator("issuer")
    @classmethod
    def _is_safe(cls, given: str) -> str:
        """Raise ValueError for an issuer that is reached without encryption."""
        if not is_safe_url(given):
            raise ValueError("a provider is reached by https://, or on this machine's own loopback")
        return given

    @field_validator("scopes")
    @classmethod
    def _has_openid(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        """Raise ValueError if the scope openid is missing."""
        if "openid" not in given:
            raise ValueError("openid must be among them: without it the provider does not say who somebody is")
        return given


def load_rules(path: Path) -> SignInRules:
    """Read the rules of a file. Raises ArgumentError if it cannot be used."""
    return rules_files.read_rules("--sign-in", path, SignInRules.model_validate, FIELDS)


def client_secret(rules: SignInRules) -> str:
    """Return the client's secret, from its file or $HOPSML_SIGN_IN_SECRET; empty for a client without a secret.

    Raises:
        ArgumentError: The file cannot be read, or is empty.
    """
    if rules.client_secret_file is None:
        return SETTINGS.sign_in_secret
    try:
        found = rules.client_secret_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"client_secret_file: {rules.client_secret_file}: it cannot be read ({error}); give this user "
            f"read permission, or set {SECRET}"
        ) from error
    if not found:
        raise ArgumentError(
            f"client_secret_file: {rules.client_secret_file} is empty; write the client's secret into it"
        )
    return found


def claim_value(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its whole name or by a path, as in ``realm_access.roles``; None if there is none.

    Args:
        claims: Claims of the ID token.
        name: Name or path.
    """
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        if not isinstance(found, Mapping) or step not in found:
            return None
        found = found[step]
    return found


def caller_of_claims(claims: Mapping[str, Any], rules: SignInRules) -> Caller:
    """Return the caller that the claims of a provider identify.

    Args:
        claims: Claims of the ID token.
        rules: Rules of the sign-in file.

    Raises:
        PermissionRefused: The user's name is not usable, or is a mail address that the provider has not verified.
    """
    user = claim_value(claims, rules.user_claim)
    if not isinstance(user, str) or not user or len(rules.user_prefix + user) > 200 or not user.isprintable():
        raise PermissionRefused(
            f"the provider's claim {rules.user_claim} is {str(user)[:40]!r}: a user's name has 1 to 200 printable "
            "characters; ask the administrator for another user_claim, or for a scope that has it"
        )
    if rules.user_claim == "email" and claims.get("email_verified") is not True:
        raise PermissionRefused(
            f"the provider does not say that the mail address {user!r} is verified, and anybody could name it; "
            "verify it there"
        )
    return Caller(rules.user_prefix + user, _role(claims, rules))


def _role(claims: Mapping[str, Any], rules: SignInRules) -> Role:
    """Return the highest role that the rules assign to the claim's values; the lowest role if they assign none."""
    said = claim_value(claims, rules.roles_claim) if rules.roles_claim else None
    names = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return max(
        (Role[rules.roles[name].upper()] for name in names if isinstance(name, str) and name in rules.roles),
        default=Role.VIEWER,
    )


LASTS_S = 600


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """Secrets of one sign-in, which the provider's response must match.

    Attributes:
        state: Must be returned in the URL.
        nonce: Must be returned in the ID token.
        verifier: Sent to the provider with the code (PKCE).
    """

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> PendingSignIn:
        """Return new random secrets, which cannot be guessed."""
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))


class Seal:
    """Encryption of pending sign-ins by one server process, with a key that ends with it."""

    def __init__(self) -> None:
        from cryptography.fernet import Fernet

        self._cipher = Fernet(Fernet.generate_key())

    def close(self, pending: PendingSignIn) -> str:
        """Encrypt a pending sign-in as the text of a cookie."""
        return self._cipher.encrypt(json.dumps(asdict(pending)).encode()).decode()

    def open(self, text: str) -> PendingSignIn:
        """Decrypt the text of a cookie.

        Raises:
            ArgumentError: This server did not encrypt the text, or did so more than ``LASTS_S`` seconds ago.
        """
        from cryptography.fernet import InvalidToken

        try:
            return PendingSignIn(**json.loads(self._cipher.decrypt(text.encode(), LASTS_S)))
        except InvalidToken:
            raise ArgumentError(
                f"this browser has not started a sign-in within {LASTS_S // 60} minutes; start again, and allow cookies"
            ) from None


TIMEOUT_S = 5.0
KNOWN_S = 600.0  # seconds for which the provider's metadata is cached
LEEWAY_S = 60  # allowed difference between the provider's clock and this machine's
# Signatures that only the provider's private key can create: neither "none" nor those by a shared secret.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
_WAY = "/.well-known/openid-configuration"
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class Provider:
    """Client of one provider; all methods raise ServiceError if it is unreachable or its responses are invalid."""

    def __init__(self, rules: SignInRules, secret: str, back: str) -> None:
        """Initialize the client without connecting.

        Args:
            rules: Rules of the sign-in file.
            secret: Secret of this client; empty for none.
            back: URL of this service to which the provider redirects the browser.
        """
        self.rules, self._secret, self._back = rules, secret, back
        self._known: dict[str, Any] = {}
        self._known_s = -KNOWN_S

    def begin(self, pending: PendingSignIn) -> str:
        """Return the URL to which the browser must be redirected."""
        with self._asking() as session:
            there = self._description(session)["authorization_endpoint"]
            found, _ = session.create_authorization_url(
                there, state=pending.state, nonce=pending.nonce, code_verifier=pending.verifier
            )
        return str(found)

    def check(self) -> None:
        """Raise ServiceError if the provider does not respond or its metadata is invalid."""
        with self._asking() as session:
            self._description(session)

    def verified_claims(self, pending: PendingSignIn, given: Mapping[str, str]) -> dict[str, Any]:
        """Return the verified claims about a user who returns from the provider.

        Args:
            pending: The sign-in that this browser started.
            given: Query of the URL to which the provider redirected the browser.

        Raises:
            PermissionRefused: The response does not belong to this sign-in, is refused, or its ID token is invalid.
        """
        if not hmac.compare_digest(given.get("state", "").encode(), pending.state.encode()):
            raise PermissionRefused("the returned state does not belong to this browser; sign in again")
        if given.get("iss", self.rules.issuer) != self.rules.issuer:
            raise PermissionRefused(
                f"the answer is of {given['iss'][:80]!r}, not of {self.rules.issuer}; sign in again"
            )
        if "error" in given or "code" not in given:
            said = " ".join(given.get(name, "")[:200] for name in ("error", "error_description")).strip()
            raise PermissionRefused(
                f"the provider rejected the sign-in ({said or 'without a code'}); sign in again, or contact its "
                "administrator"
            )
        with self._asking() as session:
            known = self._description(session)
            token = session.fetch_token(
                known["token_endpoint"],
                grant_type="authorization_code",
                code=given["code"],
                code_verifier=pending.verifier,
                allow_redirects=False,  # otherwise a redirect could send the code and the client's secret to any host
            )
            claims = self._checked(session, token, pending.nonce, known["jwks_uri"])
            return self._completed(session, claims, known.get("userinfo_endpoint"))

    @contextmanager
    def _asking(self) -> Iterator[OAuth2Session]:
        """Open a session with the provider as a context, and convert its errors."""
        from authlib.common.errors import AuthlibBaseError
        from authlib.integrations.requests_client import OAuth2Session
        from joserfc.errors import JoseError
        from requests import RequestException

        methods = self._known.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        by_basic = "client_secret_basic" in methods
        with OAuth2Session(
            self.rules.client_id,
            self._secret or None,
            ("client_secret_basic" if by_basic else "client_secret_post") if self._secret else "none",
            scope=" ".join(self.rules.scopes),
            redirect_uri=self._back,
            code_challenge_method="S256",
            default_timeout=TIMEOUT_S,
        ) as session:
            try:
                yield session
            except JoseError as error:
                raise PermissionRefused(
                    f"the ID token of {self.rules.issuer} is invalid ({error}); sign in again, and contact "
                    "the administrator if it happens again"
                ) from error
            except (RequestException, AuthlibBaseError, ValueError, KeyError, TypeError) as error:
                raise ServiceError(
                    f"the provider {self.rules.issuer} cannot be reached ({type(error).__name__}: {str(error)[:200]})"
                    f"{proxies.proxy_hint(self.rules.issuer, by_requests=True)}; try again later; tokens still work"
                ) from error

    def _description(self, session: OAuth2Session) -> dict[str, Any]:
        """Return the provider's metadata.

        Its issuer must be the configured one, as any server could send the metadata of another issuer.
        """
        if time.monotonic() < self._known_s + KNOWN_S:
            return self._known
        found = self._json(session, self.rules.issuer.rstrip("/") + _WAY)
        if found.get("issuer") != self.rules.issuer:
            raise ValueError(f"it calls itself {str(found.get('issuer'))[:80]!r}: write the issuer as it does")
        if wrong := [name for name in _ENDPOINTS if not is_safe_url(str(found.get(name, "")))]:
            raise ValueError(f"its {wrong[0]} is no address that is encrypted")
        self._known, self._known_s = found, time.monotonic()
        return found

    def _json(self, session: OAuth2Session, address: str, *, as_user: bool = False) -> dict[str, Any]:
        """Return a JSON object from the provider, requested with the user's access token if ``as_user``."""
        answer = session.get(address, withhold_token=not as_user, allow_redirects=False)
        answer.raise_for_status()
        found = answer.json()
        if not isinstance(found, dict):
            raise ValueError(f"{address} answers no object")
        return found

    def _checked(self, session: OAuth2Session, token: Any, nonce: str, keys_at: str) -> dict[str, Any]:
        """Return the claims of an ID token after verification of signature, issuer, audience, expiry and nonce."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.jwk import KeySet
        from joserfc.jws import JWSRegistry

        found = self._json(session, keys_at)
        ours = [
            key for key in found["keys"] if key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig"
        ]
        registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        keys = KeySet.import_key_set({"keys": ours})
        said = jwt.decode(token["id_token"], keys, algorithms=ALGORITHMS, registry=registry)
        claims = CodeIDToken(
            said.claims,
            said.header,
            options={
                "iss": {"essential": True, "value": self.rules.issuer},
                "aud": {"essential": True, "value": self.rules.client_id},
            },
            params={"nonce": nonce, "client_id": self.rules.client_id, "access_token": token.get("access_token")},
        )
        claims.validate(now=int(time.time()), leeway=LEEWAY_S)
        return dict(claims)

    def _completed(self, session: OAuth2Session, claims: dict[str, Any], more_at: Any) -> dict[str, Any]:
        """Return the claims, with missing ones from the provider's user info, if that is about the same user."""
        wanted = [name for name in (self.rules.user_claim, self.rules.roles_claim) if name]
        if all(claim_value(claims, name) is not None for name in wanted) or not is_safe_url(str(more_at)):
            return claims
        more = self._json(session, more_at, as_user=True)
        if more.get("sub") != claims["sub"]:
            raise ValueError("its user information belongs to another user")
        return {**more, **claims}
