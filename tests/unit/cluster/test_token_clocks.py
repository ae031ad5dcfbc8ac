"""Tests of token ends where the NameNode's clock differs from that of the driver."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hopsml.cluster.driver.tokens import server_clock
from hopsml.cluster.driver.tokens.server_clock import ServerClock
from hopsml.cluster.driver.tokens.sources import TokenFileSource
from hopsml.core import delegation_tokens as tokens
from hopsml.core.delegation_tokens import Credentials, Token, TokenFacts

pytestmark = pytest.mark.fast

NOW_S = 1_800_000_000.0
LASTS_S = 300.0


def facts(issued_s: float) -> TokenFacts:
    return TokenFacts("alice", "yarn", "", issued_s, issued_s + LASTS_S)


def left_s(clock: ServerClock, issued_s: float, now_s: float) -> float:
    return server_clock.longest_s([(facts(issued_s), clock)], now_s)


@pytest.mark.parametrize("ahead_s", [-600.0, -7.0, 0.0, 7.0, 600.0])
def test_token_requested_here_lasts_for_its_life_whatever_the_servers_clock(ahead_s: float) -> None:
    issued_s = NOW_S + 0.5 + ahead_s
    clock = ServerClock().saw(facts(issued_s), NOW_S + 1, after_s=NOW_S)
    assert LASTS_S - 1 <= left_s(clock, issued_s, NOW_S + 1) <= LASTS_S
    assert LASTS_S - 101 <= left_s(clock, issued_s, NOW_S + 101) <= LASTS_S - 99
    assert server_clock.left_s([(facts(issued_s), clock)], 90.0, NOW_S + 41) == pytest.approx(50.0, abs=1.0)


@pytest.mark.parametrize("ahead_s", [-600.0, 0.0, 600.0])
def test_replaced_token_of_another_program_reveals_the_servers_clock(ahead_s: float) -> None:
    clock = ServerClock().saw(facts(NOW_S - 100 + ahead_s), NOW_S)
    clock = clock.saw(facts(NOW_S - 100 + ahead_s), NOW_S + 50)
    issued_s = NOW_S + 52 + ahead_s  # seen at the next look
    clock = clock.saw(facts(issued_s), NOW_S + 55)
    assert LASTS_S - 5 <= left_s(clock, issued_s, NOW_S + 55) <= LASTS_S


def test_first_token_from_the_future_shows_that_the_server_is_ahead() -> None:
    clock = ServerClock().saw(facts(NOW_S + 600), NOW_S)
    assert left_s(clock, NOW_S + 600, NOW_S) == LASTS_S


def test_first_token_without_other_evidence_is_as_old_as_its_date() -> None:
    clock = ServerClock().saw(facts(NOW_S - 100), NOW_S)
    assert left_s(clock, NOW_S - 100, NOW_S) == LASTS_S - 100


def test_corrected_clock_is_believed() -> None:
    clock = ServerClock().saw(facts(NOW_S + 600), NOW_S + 1, after_s=NOW_S)
    clock = clock.saw(facts(NOW_S + 100), NOW_S + 101, after_s=NOW_S + 99)
    assert abs(clock.ahead_s) <= 1


def test_old_token_that_replaces_another_is_no_evidence_of_a_clock_that_is_days_behind() -> None:
    clock = ServerClock().saw(facts(NOW_S - 90_000), NOW_S)
    clock = clock.saw(facts(NOW_S - 89_000), NOW_S + 50)
    assert clock.ahead_s == 0.0


def token(issued_s: float, password: bytes, service: str = "ha-hdfs:ns1") -> Token:
    dates = b"".join(b"\x8a" + int(at * 1000).to_bytes(6, "big") for at in (issued_s, issued_s + LASTS_S))
    return Token("", b"\0\x05alice\x04yarn\0" + dates + b"\x01\x02", password, tokens.HDFS_KIND, service)


def test_each_service_of_a_token_file_has_its_own_clock(tmp_path: Path) -> None:
    """The first NameNode's clock is 600 s behind, so that its tokens of 300 s seem to have ended before they began."""
    source, file = TokenFileSource(str(tmp_path / "tokens")), tmp_path / "tokens"
    now_s = time.time()
    for later_s, password in ((0.0, b"first"), (0.01, b"second")):  # dates have milliseconds
        issued_s = time.time() + later_s
        behind, right = token(issued_s - 600, password), token(issued_s, password, "ha-hdfs:ns2")
        tokens.write(file, Credentials((behind, right)))
        found = source.find()
        assert found.credentials.tokens == (behind, right)
    assert LASTS_S - (time.time() - now_s) - 1 <= found.longest_s <= LASTS_S
