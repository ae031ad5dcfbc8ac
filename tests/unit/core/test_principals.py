"""Tests of short names of Kerberos principals, with the examples of Hadoop's documentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.core.principals import parse_rules, short_name

pytestmark = pytest.mark.fast

RULES = """
  RULE:[2:$1/$2@$0]([ndj]n/.*@REALM\\.TLD)s/.*/hdfs/
  RULE:[2:$1/$2@$0]([rn]m/.*@REALM\\.TLD)s/.*/yarn/
  RULE:[1:$1@$0](.*@OTHER)s/@.*//L
  RULE:[1:$1](x.*)s/x/yy/g
  DEFAULT
"""


@pytest.mark.parametrize(
    ("principal", "expected"),
    [
        ("nn/host.dom.tld@REALM.TLD", "hdfs"),
        ("rm/host.dom.tld@REALM.TLD", "yarn"),
        ("Bob@OTHER", "bob"),
        ("xax@REALM.TLD", "yyayy"),
        ("alice@REALM.TLD", "alice"),
        ("alice/admin@REALM.TLD", "alice"),
        ("alice", "alice"),
        ("alice@FOREIGN", "alice@FOREIGN"),
        ("nn/host@FOREIGN", "nn/host@FOREIGN"),
        ("a@b@c", "a@b@c"),
        ("", ""),
    ],
)
def test_principal_has_the_short_name_that_hadoop_gives_it(principal: str, expected: str) -> None:
    assert short_name(principal, RULES, "REALM.TLD") == expected


def test_default_rule_is_for_the_default_realm_only() -> None:
    assert short_name("alice@R", "", "R") == "alice"
    assert short_name("alice@R", "", "S") == "alice@R"
    assert short_name("alice@R", "", "") == "alice@R"
    assert short_name("alice@R", "RULE:[1:$1]", "") == "alice"


def test_groups_of_a_pattern_are_replaced_as_in_java() -> None:
    assert short_name("app-7@R", r"RULE:[1:$1](app-.*)s/app-(\d)/service$1/", "R") == "service7"


@pytest.mark.parametrize("rules", ["RULE:[1:$1", "nonsense", "DEFAULT RULE:", "RULE:[1:$1]([)s/a/b/"])
def test_rules_that_cannot_be_read_give_nobody_a_short_name(rules: str) -> None:
    assert short_name("alice@S", rules, "R") == "alice@S"


def test_result_that_is_no_simple_name_is_not_used() -> None:
    assert short_name("alice@R", "RULE:[1:$1@$0]", "R") == "alice@R"


@given(st.text(max_size=60), st.text(alphabet="RULE:[]12$0()s/.*gL DEFAT@", max_size=60))
def test_any_name_and_rules_give_a_name(principal: str, rules: str) -> None:
    assert isinstance(short_name(principal, rules, "R"), str)


def test_rules_are_read_in_their_order() -> None:
    first, second = parse_rules("RULE:[2:$1](a)s/a/b/g/L\nDEFAULT")
    assert (first.components, first.form, first.expression, first.pattern) == (2, "$1", "a", "a")
    assert (first.replacement, first.is_repeated, first.is_lowered) == ("b", True, True)
    assert second.components == -1
