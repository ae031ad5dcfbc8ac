"""Rules of sign-in, of ``hopsml server --sign-in sign-in.yaml``, and the user and role that follow from claims.

issuer: https://login.example.org/realms/team
client_id: hopsml
client_secret_file: /etc/hopsml/client-secret      # or $HOPSML_SIGN_IN_SECRET
user_claim: preferred_username                     # default: sub, the only claim that users cannot choose
user_prefix: "team:"                               # default: "oidc:"
roles_claim: groups
roles: {ml-operators: operator, ml: user}          # default: viewer
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, PermissionRefused
from hopsml.service import rules_files
from hopsml.service.spec.fields import Duration
from hopsml.service.store.accounts import Caller, Role

SECRET = Settings.sign_in_secret.name
LOOPBACK = ("127.0.0.1", "::1", "localhost")
FIELDS = (
    "a file of this kind has issuer, client_id, client_secret_file, scopes, user_claim, user_prefix, roles_claim, roles, "
    "lasts; see docs/how-to/sign-in.md"
)


def is_safe(address: str) -> bool:
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
        if not is_safe(given):
            raise ValueError("a provider is reached by https://, or on this machine's own loopback")
        return given

    @field_validator("scopes")
    @classmethod
    def _has_openid(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        """Raise ValueError if the scope openid is missing."""
        if "openid" not in given:
            raise ValueError("openid must be among them: without it the provider does not say who somebody is")
        return given


def load(path: Path) -> SignInRules:
    """Read the rules of a file. Raises ArgumentError if it cannot be used."""
    return rules_files.read("--sign-in", path, SignInRules.model_validate, FIELDS)


def secret(rules: SignInRules) -> str:
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
            f"client_secret_file: {rules.client_secret_file}: it cannot be read ({error}); let this user read "
            f"it, or set {SECRET}"
        ) from error
    if not found:
        raise ArgumentError(
            f"client_secret_file: {rules.client_secret_file} is empty; write the client's secret into it"
        )
    return found


def claim(claims: Mapping[str, Any], name: str) -> Any:
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


def caller(claims: Mapping[str, Any], rules: SignInRules) -> Caller:
    """Return the caller that the claims of a provider identify.

    Args:
        claims: Claims of the ID token.
        rules: Rules of the sign-in file.

    Raises:
        PermissionRefused: The user's name is not usable, or is a mail address that the provider has not verified.
    """
    user = claim(claims, rules.user_claim)
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
    said = claim(claims, rules.roles_claim) if rules.roles_claim else None
    names = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return max(
        (Role[rules.roles[name].upper()] for name in names if isinstance(name, str) and name in rules.roles),
        default=Role.VIEWER,
    )
