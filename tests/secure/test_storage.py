"""Runs on this machine with token files against a Kerberized HDFS: broken and revoked tokens, names, other users."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from hopsml import experiment
from hopsml.cluster.agent.agent import folder_prefix
from hopsml.core import delegation_tokens as tokens
from hopsml.core import settings
from hopsml.core.delegation_tokens import Credentials, Token
from hopsml.errors import ArgumentError, PermissionRefused, RunError
from hopsml.experiment import applications
from hopsml.storage import filesystem, mailbox, trust
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir
from tests.helpers import tokens as test_tokens
from tests.helpers.clock import WAIT_S, wait_until
from tests.helpers.cluster.simulated import connected
from tests.helpers.storage.token_runs import LIFE_S, finish, notes, start, stored, token_file

pytestmark = pytest.mark.secure
__all__ = ["token_file"]


DAMAGES = ["corrupt", "empty", "deleted", "protobuf", "no tokens"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_token_file_is_reported_and_harmless_until_the_last_tokens_end(
    damage: str, secure_hdfs: Any, token_file: Path, tmp_path: Path
) -> None:
    with test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3):
        run, folder = start(secure_hdfs, tmp_path)
        wait_until(lambda: stored(folder, 2), "the first files")
        content = {"corrupt": token_file.read_bytes()[:-9], "empty": b"", "protobuf": b"HDTS\x01"}
        content["no tokens"] = Credentials().encode()
        token_file.unlink()
        if damage in content:
            token_file.write_bytes(content[damage])
        wait_until(lambda: "new delegation tokens for HDFS could not be obtained" in notes(run), "the note")
        assert "the present ones can be used until" in notes(run)
        tokens.write(token_file, test_tokens.obtain(secure_hdfs))
        wait_until(lambda: "delegation tokens for HDFS are obtained again" in notes(run), "new tokens")
    with test_tokens.renewing(secure_hdfs, token_file, LIFE_S / 3):
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 1.5 * LIFE_S or not run.running(), "another life", 4 * LIFE_S)
        finish(run, tmp_path, folder)


def test_token_with_an_identifier_that_only_the_namenode_understands_is_passed_on(
    secure_hdfs: Any, token_file: Path, tmp_path: Path
) -> None:
    """Its dates are unknown; a token for another service stands for one of a later version."""
    with test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3) as held:
        strange = Token("", b"\0\5", b"strange", tokens.HDFS_KIND, "ha-hdfs:other")
        run, folder = start(secure_hdfs, tmp_path)
        wait_until(lambda: stored(folder, 2), "the first files")
        tokens.write(token_file, both := held.updated(Credentials((strange,))))
        wait_until(lambda: all(tokens.read(path) == both for path in agents_files()), "the tokens at all agents")
        count = len(for_url(folder).list_dir(folder))
        wait_until(lambda: len(for_url(folder).list_dir(folder)) > count + 2, "later files")
        assert "could not be obtained" not in notes(run)
        finish(run, tmp_path, folder)


def test_run_outlives_the_maximum_life_of_its_tokens_twice(secure_hdfs: Any, token_file: Path, tmp_path: Path) -> None:
    """Each token is renewed, and replaced before hdfs-native ignores it, in the last minute of its maximum life."""
    most_s = secure_hdfs.state.security.token_max_s
    given = list[Credentials]()
    with contextlib.ExitStack() as renewed:

        def replace() -> float:
            given.append(renewed.enter_context(test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3)))
            return time.monotonic()

        began = obtained = replace()
        run, folder = start(secure_hdfs, tmp_path)
        while obtained - began < 2.1 * most_s:
            due_s = obtained + 0.2 * most_s
            wait_until(lambda due_s=due_s: time.monotonic() > due_s or not run.running(), "the next token", most_s)
            assert run.running() or run.result(WAIT_S)
            obtained = replace()
        with pytest.raises(OSError, match=r"40[013]"):
            test_tokens.renew(secure_hdfs, given[0])
        finish(run, tmp_path, folder)
    assert len(given) >= 4 and "could not be obtained" not in notes(run)


def test_revoked_token_fails_the_worker_with_the_cause(secure_hdfs: Any, token_file: Path, tmp_path: Path) -> None:
    with test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3) as held:
        run, folder = start(secure_hdfs, tmp_path)
        wait_until(lambda: stored(folder, 2), "the first files")
        test_tokens.cancel(secure_hdfs, held)
        with pytest.raises(RunError, match="the delegation token is expired or unknown"):
            run.result(6 * LIFE_S + WAIT_S)


def test_replaced_token_is_used_before_the_old_one_is_revoked(
    secure_hdfs: Any, token_file: Path, tmp_path: Path
) -> None:
    with test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3) as held:
        run, folder = start(secure_hdfs, tmp_path)
        wait_until(lambda: stored(folder, 2), "the first files")
        fresh = test_tokens.obtain(secure_hdfs)
        tokens.write(token_file, fresh)
        agents = agents_files()
        wait_until(lambda: all(tokens.read(path) == fresh for path in agents), "the new tokens at all agents")
        test_tokens.cancel(secure_hdfs, held)
        assert len(agents) == 2
        finish(run, tmp_path, folder)


def agents_files() -> list[Path]:
    """Return the token files of this process's agents."""
    sessions = applications.get_or_start().coordinator.door.agents.values()
    folders = [next(Path(tempfile.gettempdir()).glob(f"{folder_prefix(one.hello.pid)}*")) for one in sessions]
    return [folder / "tokens" for folder in folders]


def test_project_is_that_of_the_tokens_owner(secure_hdfs: Any, token_file: Path, tmp_path: Path) -> None:
    secure_hdfs.fs("-mkdir", "-p", "/Projects")
    secure_hdfs.fs("-chmod", "1777", "/Projects")
    with test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3), pytest.MonkeyPatch.context() as unnamed:
        unnamed.delenv("HOPSML_PROJECT_URL")
        assert settings.user_name() == "alice"
        run, folder = start(secure_hdfs, tmp_path)
        assert run.run_dir.startswith(f"{secure_hdfs.namenode_url}/Projects/alice/Experiments/")
        wait_until(lambda: stored(folder, 2), "the first files")
        assert for_url(run.run_dir).status(run.run_dir).owner == "alice"
        finish(run, tmp_path, folder)


def test_another_user_can_neither_read_nor_cancel_a_run_nor_make_files_believed(
    secure_hdfs: Any, token_file: Path, tmp_path: Path
) -> None:
    with test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3):
        run, folder = start(secure_hdfs, tmp_path)
        wait_until(lambda: stored(folder, 2), "the first files")
        with pytest.MonkeyPatch.context() as bobs:
            tokens.write(tmp_path / "bobs-tokens", test_tokens.obtain(secure_hdfs, "bob"))
            bobs.setenv(tokens.VARIABLE, str(tmp_path / "bobs-tokens"))
            filesystem.close_all()
            assert settings.user_name() == "bob"
            with pytest.raises(PermissionRefused):
                for_url(run.run_dir).read_bytes(f"{run.run_dir}/run.json")
            with pytest.raises(PermissionRefused):
                mailbox.write_cancel_request(RunDir(run.run_dir), "of no concern to bob")
            own = f"{secure_hdfs.namenode_url}/user/bob/code.py"
            for_url(own).write_bytes(own, b"print('bob')")
            secure_hdfs.fs("-chmod", "755", "/user/bob")
        filesystem.close_all()
        with pytest.raises(ArgumentError, match="belongs to bob"):
            trust.read_bytes(own, "it decides which code runs")
        finish(run, tmp_path, folder)


def test_another_user_can_neither_resume_nor_continue_nor_evaluate_nor_join_a_run(
    secure_hdfs: Any, token_file: Path, tmp_path: Path
) -> None:
    with test_tokens.kept_alive(secure_hdfs, token_file, LIFE_S / 3):
        run, folder = start(secure_hdfs, tmp_path)
        wait_until(lambda: stored(folder, 2), "the first files")
        with pytest.MonkeyPatch.context() as bobs:
            tokens.write(tmp_path / "bobs-tokens", test_tokens.obtain(secure_hdfs, "bob"))
            bobs.setenv(tokens.VARIABLE, str(tmp_path / "bobs-tokens"))
            filesystem.close_all()
            for verb in (experiment.resume, experiment.continue_search, partial(experiment.evaluate, len)):
                with pytest.raises(PermissionRefused):
                    verb(run.run_dir, progress=False)
        filesystem.close_all()
        coordinator = applications.get_or_start().coordinator

        async def join() -> None:
            with pytest.raises(InvalidStatus, match="401"):
                async with connected(coordinator.addresses[0], coordinator.door.identity.certificate, "x" * 43):
                    pass

        asyncio.run(join())
        assert dict(coordinator.door.refused) == {"token": 1} and run.running()
        finish(run, tmp_path, folder)
