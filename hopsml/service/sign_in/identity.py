"""User name and role of a user, derived from an OpenID provider's claims; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.errors import PermissionRefused
from hopsml.service.sign_in.rules import SignInRules
from hopsml.service.store.tokens import Caller, Role


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
