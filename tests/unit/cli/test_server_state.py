"""Tests of the folder with the data of a job service, in which other users must not be able to create files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsml.cli.server import _announce
from hopsml.errors import ArgumentError

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_folder_in_which_all_users_can_create_files_is_refused(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    with pytest.raises(
        ArgumentError, match=r"all users; name a folder|all users can create files there; name a folder"
    ):
        _announce(state / "starting")
    assert not list(state.iterdir())


def test_folder_that_another_user_made_first_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can make a folder of another user")
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 12345, 12345)
    with pytest.raises(ArgumentError, match="belongs to 12345; name a folder that only you can write to"):
        _announce(state / "starting")


def test_link_in_place_of_the_locked_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "starting").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArgumentError, match="it cannot be written"):
        _announce(tmp_path / "starting")
    assert not (tmp_path / "elsewhere").exists()


def test_new_folder_is_private_and_an_own_one_is_accepted(tmp_path: Path) -> None:
    for mode in (None, 0o755, 0o775):
        if mode is not None:
            (tmp_path / "state").chmod(mode)
        _announce(tmp_path / "state" / "starting")()
        assert mode or (tmp_path / "state").stat().st_mode & 0o777 == 0o700
