"""Tests of the tokens that a driver obtains for one store among several."""

from __future__ import annotations

import pytest

from hopsml.cluster.driver.tokens import sources, stores
from hopsml.cluster.driver.tokens.stores import StoreTokens
from hopsml.core import delegation_tokens as tokens
from hopsml.core.delegation_tokens import Credentials, Token
from hopsml.core.krb5 import Ticket

pytestmark = pytest.mark.fast

BEGIN_S = 1_700_000_000.0
SOME = Credentials((Token("", b"identifier", b"password", tokens.HDFS_KIND, "b:8020"),))


@pytest.mark.parametrize(("life_s", "due_s"), [(90.0, 45.0), (3600.0, 1800.0), (86400.0, 6 * 3600.0)])
def test_tokens_of_a_store_are_due_at_half_of_their_life_and_usable_to_its_end(life_s: float, due_s: float) -> None:
    store = stores.after_success(SOME, life_s, BEGIN_S)
    assert store.due_s == BEGIN_S + due_s
    assert store.usable(BEGIN_S + life_s - 1) == SOME
    assert store.usable(BEGIN_S + life_s) == Credentials()


def test_passing_error_keeps_the_last_tokens_and_is_followed_by_another_attempt() -> None:
    store, now_s, attempts = stores.after_success(SOME, 90.0, BEGIN_S), BEGIN_S + 45.0, 0
    while now_s < BEGIN_S + 90.0:
        assert store.usable(now_s) == SOME
        store, attempts = stores.after_failure(store, "connection refused", now_s), attempts + 1
        assert now_s < store.due_s
        now_s = store.due_s
    assert attempts >= 5, "several attempts before the end"
    assert store.usable(now_s) == Credentials()
    assert stores.missing({"hdfs://a": StoreTokens(), "hdfs://b": store}) == "hdfs://b (connection refused)"
    assert stores.missing({"hdfs://b": stores.after_success(SOME, 90.0, now_s)}) == ""


def test_store_that_never_had_tokens_is_asked_again_with_growing_pauses() -> None:
    store, pauses = StoreTokens(), []
    for _ in range(8):
        store = stores.after_failure(store, "refused", BEGIN_S)
        pauses.append(store.due_s - BEGIN_S)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


@pytest.mark.parametrize(
    ("renewable_s", "has_kinit", "left_s"),
    [(0.0, True, 600.0), (0.0, False, 600.0), (7200.0, True, 7200.0), (7200.0, False, 600.0)],
)
def test_ticket_counts_to_its_last_renewal_only_if_the_driver_can_renew_it(
    renewable_s: float, has_kinit: bool, left_s: float
) -> None:
    ticket = Ticket("a@R", "FILE:/c", BEGIN_S + 600.0, BEGIN_S + renewable_s if renewable_s else 0.0)
    assert sources.ticket_end_s(ticket, has_kinit) == BEGIN_S + left_s
