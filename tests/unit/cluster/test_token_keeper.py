"""Tests of the thread that keeps tokens valid, with a token file as its source."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.cluster.driver.tokens.keeper import TokenKeeper
from hopsml.cluster.driver.tokens.sources import TokenFileSource
from hopsml.core import delegation_tokens as tokens
from hopsml.core.delegation_tokens import Credentials, Token
from tests.helpers.clock import wait_until

pytestmark = pytest.mark.fast


def made(password: bytes, kind: str = tokens.HDFS_KIND, service: str = "ha-hdfs:ns1", lasts_s: float = 40.0) -> Token:
    """A token of alice that lasts for some seconds; it is looked at every two."""
    dates = b"".join(b"\x8a" + int(at * 1000).to_bytes(6, "big") for at in (time.time(), time.time() + lasts_s))
    return Token("", b"\0\x05alice\x04yarn\0" + dates + b"\x01\x02", password, kind, service)


class Kept:
    """A running keeper, what it has given to agents, and what it has told the user."""

    def __init__(self, given: Path) -> None:
        self.given, self.shipped, self.told = given, list[Credentials](), list[str]()
        self.keeper = TokenKeeper(TokenFileSource(str(given)), self.shipped.append, self.told.append)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """Yield a keeper that is not started, whose given file has tokens of two kinds."""
    given = tmp_path / "given"
    tokens.write(given, Credentials((made(b"first"), made(b"am", "YARN_AM_RM_TOKEN", "rm")), (("cookie", b"secret"),)))
    monkeypatch.setenv(tokens.VARIABLE, str(given))
    running = Kept(given)
    yield running
    running.keeper.close()
    assert os.environ[tokens.VARIABLE] == str(given)


def passwords(credentials: Credentials) -> list[bytes]:
    return [token.password for token in credentials.tokens]


def test_agents_get_the_tokens_of_hdfs_and_each_newer_one(kept: Kept) -> None:
    kept.keeper.start()
    assert [passwords(one) for one in kept.shipped] == [[b"first"]], "YARN's tokens and secrets stay in the driver"
    assert kept.shipped[0].secrets == ()
    own = os.environ[tokens.VARIABLE]
    assert own != str(kept.given) and passwords(tokens.read(own)) == [b"first", b"am"]
    tokens.write(kept.given, Credentials((made(b"second"),)))
    wait_until(lambda: len(kept.shipped) == 2, "the newer token")
    assert passwords(kept.shipped[1]) == [b"second"] == passwords(tokens.read(own))
    assert "neither ticket nor keytab" in kept.keeper.notice and kept.told[0] == kept.keeper.notice


def test_broken_file_is_reported_and_the_last_tokens_stay(kept: Kept) -> None:
    kept.keeper.start()
    own = os.environ[tokens.VARIABLE]
    kept.given.write_bytes(b"broken")
    wait_until(lambda: "could not be obtained" in kept.told[-1], "the note")
    assert "does not begin with HDTS" in kept.told[-1]
    assert passwords(tokens.read(own)) == [b"first", b"am"]
    tokens.write(kept.given, Credentials((made(b"third"),)))
    wait_until(lambda: len(kept.shipped) == 2, "tokens of the repaired file")
    assert "delegation tokens for HDFS are obtained again" in kept.told


def test_missing_file_does_not_prevent_the_start(kept: Kept) -> None:
    kept.given.unlink()
    kept.keeper.start()
    assert kept.shipped == [] and "no delegation tokens for HDFS could be obtained" in kept.keeper.notice
    tokens.write(kept.given, Credentials((made(b"late"),)))
    wait_until(lambda: len(kept.shipped) == 1, "the first tokens")


def test_kinds_that_the_user_names_are_given_as_well(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_TOKEN_KINDS", "HIVE_DELEGATION_TOKEN, HBASE_AUTH_TOKEN")
    tokens.write(kept.given, Credentials((made(b"hive", "HIVE_DELEGATION_TOKEN"), made(b"am", "YARN_AM_RM_TOKEN"))))
    kept.keeper.start()
    assert [passwords(one) for one in kept.shipped] == [[b"hive"]]
