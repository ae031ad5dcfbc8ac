"""Who somebody is by what a provider says, and what they may do; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopsml.errors import PermissionRefused
from hopsml.service.sign_in.rules import SignInRules
from hopsml.service.store.tokens import Caller, Role


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """One of them, by its whole name or by the steps to it, as in ``realm_access.roles``; None where there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        if not isinstance(found, Mapping) or step not in found:
            return None
        found = found[step]
    return found


def caller(claims: Mapping[str, Any], rules: SignInRules) -> Caller:
    """Raises PermissionRefused for somebody without a name of use, and for a mail address that is not verified."""
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
    """The highest of those that the map gives; the lowest there is for whoever is not in it."""
    said = claim(claims, rules.roles_claim) if rules.roles_claim else None
    names = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return max(
        (Role[rules.roles[name].upper()] for name in names if isinstance(name, str) and name in rules.roles),
        default=Role.VIEWER,
    )
