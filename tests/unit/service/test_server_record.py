"""A server's record for this user's commands, and its own token, which no later server accepts."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopsml.service import server_record
from hopsml.service.server_record import JobServerRecord, OwnToken
from hopsml.service.store import JobStore
from hopsml.service.store.accounts import OWN, SIGNED_IN_DAYS, Role, Tokens

pytestmark = pytest.mark.fast
DAY_S = 86_400.0


@pytest.fixture
def tokens(tmp_path: Path) -> Iterator[Tokens]:
    store = JobStore.open(f"sqlite:///{tmp_path}/service.db")
    try:
        yield Tokens(store)
    finally:
        store.close()


def is_valid(tokens: Tokens, token: str) -> bool:
    caller = tokens.caller(token, time.time())
    assert caller is None or caller.role == Role.ADMIN
    return caller is not None


def kill(own: OwnToken) -> None:
    """Release the lock, as the kernel does for a process that is killed."""
    os.close(own._file)


def test_each_server_has_a_new_token_and_that_of_a_killed_one_is_refused(tmp_path: Path, tokens: Tokens) -> None:
    others = tokens.create("bob", Role.ADMIN, time.time())
    first = OwnToken(tmp_path, tokens)
    assert is_valid(tokens, first.value) and not first.is_shared
    assert (tmp_path / "own-token").stat().st_mode & 0o777 == 0o600
    kill(first)
    second = OwnToken(tmp_path, tokens)
    assert second.value != first.value and not second.is_shared
    assert (is_valid(tokens, first.value), is_valid(tokens, second.value)) == (False, True)
    second.close()
    assert not is_valid(tokens, second.value) and is_valid(tokens, others)
    assert [row.label for row in tokens.all()] == ["", OWN], "one row, however often a server starts"


def test_servers_that_run_together_share_a_token_until_the_last_ends(tmp_path: Path, tokens: Tokens) -> None:
    first = OwnToken(tmp_path, tokens)
    second = OwnToken(tmp_path, tokens)
    assert second.is_shared and second.value == first.value
    first.close()
    third = OwnToken(tmp_path, tokens)
    assert third.value == first.value and is_valid(tokens, first.value)
    kill(second)
    third.close()
    assert not is_valid(tokens, first.value)


def test_token_of_an_earlier_version_is_replaced(tmp_path: Path, tokens: Tokens) -> None:
    earlier = tokens.create("anna", Role.ADMIN, time.time(), label=OWN)
    server_record.write(tmp_path, JobServerRecord("http://127.0.0.1:1/", earlier))
    own = OwnToken(tmp_path, tokens)
    assert not is_valid(tokens, earlier) and is_valid(tokens, own.value)
    own.close()


def test_users_token_in_the_record_remains_valid(tmp_path: Path, tokens: Tokens) -> None:
    """Whatever the file contains, only a server's own token is replaced."""
    given = tokens.create("bob", Role.ADMIN, time.time(), label="for a program")
    server_record.write(tmp_path, JobServerRecord("http://127.0.0.1:1/", given))
    OwnToken(tmp_path, tokens).close()
    assert is_valid(tokens, given)


def test_revoked_token_is_replaced_beside_a_server_that_runs(tmp_path: Path, tokens: Tokens) -> None:
    first = OwnToken(tmp_path, tokens)
    tokens.revoke(tokens.all()[0].id, time.time())
    second = OwnToken(tmp_path, tokens)
    assert second.is_shared and not is_valid(tokens, first.value) and is_valid(tokens, second.value)
    second.close()
    first.close()
    assert not is_valid(tokens, second.value)


def test_file_system_without_locks_leaves_the_token_as_it_is(
    tmp_path: Path, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    first = OwnToken(tmp_path, tokens)
    first.close()
    second = OwnToken(tmp_path, tokens)
    assert second.value == first.value and is_valid(tokens, second.value)
    second.close()


def test_owner_of_schedules_may_submit_after_the_own_server_has_ended(tmp_path: Path, tokens: Tokens) -> None:
    """Another server of the database runs them, until the same time as after the end of a session."""
    own = OwnToken(tmp_path, tokens)
    user, now = tokens.all()[0].user, time.time()
    own.close()
    assert tokens.may_submit(user, now + (SIGNED_IN_DAYS - 1) * DAY_S)
    assert not tokens.may_submit(user, now + (SIGNED_IN_DAYS + 1) * DAY_S)


def test_record_is_removed_only_by_its_server(tmp_path: Path) -> None:
    first, second = (JobServerRecord(f"http://127.0.0.1:{port}/", "token", "/c.pem") for port in (1, 2))
    server_record.write(tmp_path, first)
    assert server_record.read(tmp_path) == first
    assert (tmp_path / "client.json").stat().st_mode & 0o777 == 0o600
    server_record.write(tmp_path, second)
    server_record.remove(tmp_path, first)
    assert server_record.read(tmp_path) == second
    server_record.remove(tmp_path, second)
    assert server_record.read(tmp_path) is None and server_record.last_port(tmp_path) == 2
    server_record.remove(tmp_path, second)
