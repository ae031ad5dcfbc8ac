"""Short names of Kerberos principals, by Hadoop's rules (``hadoop.security.auth_to_local``); pure.

    short_name("hive/node1@EXAMPLE.COM", "RULE:[2:$1@$0](hive@.*)s/.*/etl/ DEFAULT", "EXAMPLE.COM")  # "etl"

A rule is ``RULE:[COMPONENTS:FORMAT](EXPRESSION)s/PATTERN/REPLACEMENT/g/L``, where all but the first part are optional, or
``DEFAULT``: the first component of a principal of the default realm. The first rule that applies decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_RULES = "DEFAULT"
_PRINCIPAL = re.compile(r"([^/@]+)(?:/([^/@]+))?(?:@([^/@]+))?")
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:\[(\d*):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?)/?(L)?")
_PARAMETER = re.compile(r"\$(\d+)")


@dataclass(frozen=True)
class NameRule:
    """One rule; ``components`` is -1 for ``DEFAULT``."""

    components: int = -1
    form: str = ""
    expression: str | None = None
    pattern: str | None = None
    replacement: str = ""
    is_repeated: bool = False
    is_lowered: bool = False

    def apply(self, parts: tuple[str, ...], default_realm: str) -> str | None:
        """Return the short name of a principal's realm and components; None if the rule does not apply."""
        if self.components < 0:
            return parts[1] if parts[0] == default_realm else None
        if len(parts) - 1 != self.components:
            return None
        found = _PARAMETER.sub(lambda match: parts[int(match[1])] if int(match[1]) < len(parts) else "", self.form)
        if self.expression is not None and not re.fullmatch(self.expression, found):
            return None
        if self.pattern is not None:
            replacement = re.sub(r"\$(\d)", r"\\\1", self.replacement)  # Java's form of a group
            found = re.sub(self.pattern, replacement, found, count=0 if self.is_repeated else 1)
        return found.lower() if self.is_lowered else found


def parse_rules(text: str) -> tuple[NameRule, ...]:
    """Return the rules of ``hadoop.security.auth_to_local``; ValueError for one that Hadoop would refuse."""
    rules, at, text = [], 0, text.strip()
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None or match.end() == at:
            raise ValueError(f"not a rule: {text[at:].split()[0]!r}")
        default, components, form, expression, pattern, replacement, repeated, lowered = match.groups()
        if default:
            rules.append(NameRule())
        else:
            change = replacement or "", bool(repeated), bool(lowered)
            rules.append(NameRule(int(components or 0), form, expression, pattern, *change))
        at = match.end()
        while text[at : at + 1].isspace():
            at += 1
    return tuple(rules)


def short_name(principal: str, rules: str, default_realm: str) -> str:
    """Return the user's name in Hadoop for a principal.

    Without a rule that applies, or with rules that cannot be read, the whole principal is returned: it is nobody's short
    name, so that no file of a namesake in another realm is taken for the user's own.

    Args:
        principal: for instance ``alice@EXAMPLE.COM``; a name without a realm is returned as it is.
        rules: value of ``hadoop.security.auth_to_local``; empty for Hadoop's default.
        default_realm: realm of krb5.conf; empty if it is unknown.
    """
    match = _PRINCIPAL.fullmatch(principal)
    if match is None:
        return principal
    name, host, realm = match.groups()
    if realm is None and host is None:
        return name
    parts = (realm or default_realm, name) if host is None else (realm or default_realm, name, host)
    try:
        applied = (rule.apply(parts, default_realm) for rule in parse_rules(rules or DEFAULT_RULES))
        found = next((short for short in applied if short is not None), None)
    except (ValueError, re.error):
        return principal
    return principal if not found or re.search(r"[/@]", found) else found
