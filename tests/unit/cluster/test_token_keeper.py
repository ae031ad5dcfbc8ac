"""Tests of the thread that keeps tokens valid, with a token file as its source."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.cluster.driver import coordinator as coordinator_module
from hopsml.cluster.driver.coordinator import TICK_S
from hopsml.cluster.driver.tokens.keeper import TokenKeeper
from hopsml.cluster.driver.tokens.sources import FoundTokens, TokenFileSource
from hopsml.core import delegation_tokens as tokens
from hopsml.core.delegation_tokens import Credentials, Token
from hopsml.experiment import applications
from tests.helpers.clock import END_S, wait_until
from tests.helpers.local_application import local_application

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


def test_file_without_tokens_of_hdfs_is_reported_and_the_last_tokens_stay(kept: Kept) -> None:
    kept.keeper.start()
    own = os.environ[tokens.VARIABLE]
    tokens.write(kept.given, Credentials((made(b"am", "YARN_AM_RM_TOKEN", "rm"),)))
    wait_until(lambda: "has no delegation token for HDFS" in kept.told[-1], "the note")
    assert [passwords(one) for one in kept.shipped] == [[b"first"]]
    assert b"first" in passwords(tokens.read(own))


def test_token_with_an_unreadable_identifier_is_given_and_announced(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients send the identifier as it is; only the NameNode must understand it."""
    strange = Token("", b"\0\5", b"strange", tokens.HDFS_KIND, "ha-hdfs:ns1")
    tokens.write(kept.given, Credentials((strange,)))
    kept.keeper.start()
    assert [passwords(one) for one in kept.shipped] == [[b"strange"]]
    assert ["it is unknown when the delegation tokens" in text for text in kept.told] == [True]
    assert "Traceback" not in caplog.text


class Failing(TokenFileSource):
    """A source with a fault that it does not know."""

    def find(self) -> FoundTokens:
        """Raise an error of another kind, once."""
        if not os.path.exists(f"{self.path}.failed"):
            open(f"{self.path}.failed", "w").close()
            raise ZeroDivisionError("a fault")
        return super().find()


def test_unexpected_error_is_told_and_tried_again_with_pauses(kept: Kept) -> None:
    kept.keeper._source = Failing(str(kept.given))
    kept.keeper.start()
    assert kept.shipped == [] and "ZeroDivisionError: a fault; it is tried again" in kept.keeper.notice
    wait_until(lambda: kept.shipped, "tokens")
    assert "neither ticket nor keytab" in kept.keeper.notice, "what a later run must know, once the failure has passed"


HOLDER = """
import sys, time
from hopsml.cluster.driver.tokens.keeper import TokenKeeper
from hopsml.cluster.driver.tokens.sources import TokenFileSource
keeper = TokenKeeper(TokenFileSource(sys.argv[1]), print, print)
print(keeper._folder, flush=True)
time.sleep(3600)
"""


def test_folder_of_a_killed_driver_is_deleted_by_the_next_one_and_that_of_a_living_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    given = tmp_path / "given"
    tokens.write(given, Credentials((made(b"first"),)))
    monkeypatch.setenv(tokens.VARIABLE, str(given))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    command, variables = [sys.executable, "-c", HOLDER, str(given)], {**os.environ, "TMPDIR": str(scratch)}
    running = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        killed, alive = [Path(one.stdout.readline().strip()) for one in running if one.stdout]
        assert passwords(tokens.read(killed / "tokens")) == [b"first"]
        running[0].kill()
        running[0].wait()
        Kept(given).keeper.close()
        assert os.listdir(scratch) == [alive.name]
        assert passwords(tokens.read(alive / "tokens")) == [b"first"]
    finally:
        for one in running:
            one.kill()
            one.communicate()


class SlowTokens:
    """Source whose first tokens take longer than an idle coordinator stays open."""

    obtains, extends, is_backed = True, True, False

    def find(self) -> FoundTokens:
        """Return no tokens, after a while."""
        time.sleep(10 * TICK_S)
        return FoundTokens(Credentials())


def test_application_whose_tokens_take_long_is_open_when_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, or while another NameNode takes over."""
    monkeypatch.setattr(coordinator_module, "LINGER_S", 4 * TICK_S)
    monkeypatch.setattr(applications, "source_of", lambda context: SlowTokens())
    with local_application(tmp_path):
        started = applications.get_or_start("local")
        assert started.coordinator.is_alive
        wait_until(lambda: not started.coordinator.is_alive, "its end, as nothing uses it", END_S)
