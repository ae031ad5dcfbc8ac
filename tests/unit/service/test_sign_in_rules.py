"""Tests of the sign-in file, and of the user and roles that a provider's claims give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import ArgumentError, PermissionRefused
from hopsml.service import sign_in
from hopsml.service.sign_in import PendingSignIn, Seal
from hopsml.service.store.accounts import Caller, Role

pytestmark = pytest.mark.fast

LEAST = {"issuer": "https://login.example.org", "client_id": "hopsml"}


def _rules(**more: Any) -> sign_in.SignInRules:
    return sign_in.SignInRules.model_validate({**LEAST, **more})


@pytest.mark.parametrize(
    ("claims", "more", "role"),
    [
        ({}, {}, Role.VIEWER),
        ({"groups": ["a"]}, {"roles_claim": "groups"}, Role.VIEWER),
        ({"groups": ["a", "b"]}, {"roles_claim": "groups", "roles": {"a": "admin", "b": "user"}}, Role.ADMIN),
        ({"groups": "b"}, {"roles_claim": "groups", "roles": {"b": "user"}}, Role.USER),
        ({"groups": ["a"]}, {"roles": {"a": "admin"}}, Role.VIEWER),  # no claim is named
        ({"realm": {"roles": ["a"]}}, {"roles_claim": "realm.roles", "roles": {"a": "operator"}}, Role.OPERATOR),
        ({"https://x.org/r": ["a"]}, {"roles_claim": "https://x.org/r", "roles": {"a": "user"}}, Role.USER),
        ({"groups": [{"a": 1}, 7, None]}, {"roles_claim": "groups", "roles": {"a": "admin"}}, Role.VIEWER),
        ({"groups": {"a": 1}}, {"roles_claim": "groups", "roles": {"a": "admin"}}, Role.VIEWER),
    ],
)
def test_caller_has_the_highest_mapped_role_or_viewer(claims: dict[str, Any], more: dict[str, Any], role: Role) -> None:
    assert sign_in.caller_of_claims({"sub": "ana", **claims}, _rules(**more)) == Caller("oidc:ana", role)


def test_user_name_is_the_prefixed_subject_unless_configured() -> None:
    claims = {"sub": "248289761001", "preferred_username": "root", "name": "root", "email": "root@example.org"}
    assert sign_in.caller_of_claims(claims, _rules()).user == "oidc:248289761001"
    assert sign_in.caller_of_claims(claims, _rules(user_claim="preferred_username")).user == "oidc:root"
    by_name = _rules(user_claim="preferred_username", user_prefix="")
    assert sign_in.caller_of_claims(claims, by_name).user == "root", "where an administrator has said so"


@pytest.mark.parametrize("name", [None, "", 7, ["ana"], "a" * 201, "a\nb", "\u202eana"])
def test_unsuitable_user_name_is_refused(name: object) -> None:
    with pytest.raises(PermissionRefused, match="claim sub"):
        sign_in.caller_of_claims({"sub": name}, _rules())


def test_unverified_mail_address_is_refused_as_user_name() -> None:
    by_mail = _rules(user_claim="email")
    for message in ({}, {"email_verified": False}, {"email_verified": "true"}):
        with pytest.raises(PermissionRefused, match="verified"):
            sign_in.caller_of_claims({"email": "ana@example.org", **message}, by_mail)
    assert (
        sign_in.caller_of_claims({"email": "ana@example.org", "email_verified": True}, by_mail).user
        == "oidc:ana@example.org"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "issuer: Field required"),
        ("{issuer: 'http://login.example.org', client_id: x}", "reached by https://"),
        ("{issuer: 'https://', client_id: x}", "reached by https://"),
        ("{issuer: 'https://a', client_id: ''}", "client_id"),
        ("{issuer: 'https://a', client_id: x, scopes: [email]}", "openid must be among them"),
        ("{issuer: 'https://a', client_id: x, roles: {a: root}}", "roles.a"),
        ("{issuer: 'https://a', client_id: x, lasts: 12}", "lasts: .*write 90s"),
        ("{issuer: 'https://a', client_id: x, secret: y}", "secret: Extra inputs.*client_secret_file"),
        ("[", "the file is not YAML"),
    ],
)
def test_invalid_sign_in_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "sign-in.yaml").write_text(text)
    with pytest.raises(ArgumentError, match=message):
        sign_in.load_rules(tmp_path / "sign-in.yaml")


def test_client_secret_is_read_from_the_file_or_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sign_in.SECRET, raising=False)
    assert sign_in.client_secret(_rules()) == ""
    monkeypatch.setenv(sign_in.SECRET, "of the variable")
    assert sign_in.client_secret(_rules()) == "of the variable"
    file = tmp_path / "secret"
    with pytest.raises(ArgumentError, match="cannot be read"):
        sign_in.client_secret(_rules(client_secret_file=str(file)))
    file.write_text("\n")
    with pytest.raises(ArgumentError, match="is empty"):
        sign_in.client_secret(_rules(client_secret_file=str(file)))
    file.write_text("of the file\n")
    assert sign_in.client_secret(_rules(client_secret_file=str(file))) == "of the file"


def test_pending_sign_in_is_opened_only_by_the_server_that_sealed_it() -> None:
    seal, pending = Seal(), PendingSignIn.new()
    text = seal.close(pending)
    assert seal.open(text) == pending and pending.state not in text and pending != PendingSignIn.new()
    for other in ("", "nonsense", "\xff", text[:-4] + "AAAA"):
        with pytest.raises(ArgumentError, match="start again"):
            seal.open(other)
    with pytest.raises(ArgumentError, match="start again"):
        Seal().open(text)
