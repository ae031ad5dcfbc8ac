"""Tests of concurrent exporters, some killed at any point: listed versions are complete with unique numbers."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml import model as registry
from hopsml.errors import ModelNotFound
from hopsml.storage.local import LocalFileSystem

pytestmark = pytest.mark.local

CALLS = ("list_dir", "write_bytes", "upload", "make_dirs", "status", "read_bytes")
NEVER = 100


def exporter(source: Path, kill_at: int) -> int:
    """A process that exports the folder, killed before its call number ``kill_at`` of the store; its id."""
    pid = os.fork()
    if pid:
        return pid
    left, tempfile.tempdir = [kill_at], str(source.parent)

    def counted(name: str):  # type: ignore[no-untyped-def]
        original = getattr(LocalFileSystem, name)

        def call(self: LocalFileSystem, *positional: object, **named: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(self, *positional, **named)

        return call

    try:
        with mock.patch.multiple(LocalFileSystem, **{name: counted(name) for name in CALLS}):
            registry.export(source, "digits", metrics={"exporter": float(kill_at)})
    finally:
        os._exit(0 if left[0] >= 0 else 1)


@given(kills=st.lists(st.one_of(st.just(NEVER), st.integers(0, 25)), min_size=1, max_size=4))
@settings(max_examples=10)
def test_killed_exporters_leave_only_complete_unique_versions(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int]
) -> None:
    home = tmp_path_factory.mktemp("exporters", numbered=True)
    source = home / "source"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_text(name * 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPSML_PROJECT_URL", f"file://{home}/project")
        patch.setenv("HOPSML_MLFLOW", "0")
        ends = {pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in [exporter(source, at) for at in kills]}
        assert set(ends.values()) <= {0, -signal.SIGKILL}
        survivors = sum(end == 0 for end in ends.values())
        try:
            found = registry.versions("digits")
        except ModelNotFound:
            found = []
        # A process killed after its last call has exported its version all the same.
        assert survivors <= len(found) <= len(kills)
        assert len({version.version for version in found}) == len(found)
        for version in found:
            (home / "cache").mkdir(mode=0o700, exist_ok=True)
            assert (version.local_files(home / "cache") / "b").read_text() == "b" * 1000
        last = registry.export(source, "digits")
        assert last is not None and last.version > max((version.version for version in found), default=0)
        assert registry.find("digits").version == last.version
    shutil.rmtree(home)
