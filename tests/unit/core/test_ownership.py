"""Files of another user in the working directory: profiles, the project's folder and Hadoop's settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsml.core import ownership, profiles, settings
from hopsml.errors import ArgumentError

pytestmark = [
    pytest.mark.fast,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user"),
]
OTHER = 12002  # uid of another user
PROFILE = "description: planted\nmaster: none\nenvironment: {LD_PRELOAD: /planted.so}\n"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that all users may write to, as /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.chdir(folder)
    for name in ("HOPSML_CONF_DIR", "HOPSML_PROJECT_URL", "HADOOP_CONF_DIR", "HADOOP_HOME", "CONTAINER_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PWD", str(folder))
    return folder


def plant(folder: Path, *parts: str, content: str = "") -> Path:
    """Create a file below a folder, which belongs with its folders to another user."""
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    for part in (path, *path.parents):
        if part == folder:
            break
        os.chown(part, OTHER, OTHER)
    return path


def test_profile_of_another_user_in_a_shared_directory_is_refused(shared: Path) -> None:
    plant(shared, "conf", "local.yaml", content=PROFILE)
    with pytest.raises(ArgumentError, match=r"belongs to 12002.* HOPSML_CONF_DIR"):
        profiles.load("local")


def test_profile_that_all_users_can_write_is_refused(shared: Path) -> None:
    path = shared / "conf" / "local.yaml"
    path.parent.mkdir()
    path.write_text(PROFILE)
    path.chmod(0o666)
    with pytest.raises(ArgumentError, match="can be written by all users"):
        profiles.load("local")


def test_profile_that_extends_a_planted_one_is_refused(shared: Path) -> None:
    plant(shared, "conf", "local.yaml", content=PROFILE)
    os.chown(shared / "conf", 0, 0)
    (shared / "conf" / "mine.yaml").write_text("extends: local\n")
    with pytest.raises(ArgumentError, match=r"local.yaml is not used, since .* belongs to 12002"):
        profiles.load("mine")


def test_own_profiles_and_those_of_named_folders_and_trusted_owners_are_used(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant(shared, "conf", "local.yaml", content=PROFILE)
    monkeypatch.setenv("HOPSML_TRUSTED_OWNERS", str(OTHER))
    assert profiles.load("local").description == "planted"
    monkeypatch.delenv("HOPSML_TRUSTED_OWNERS")
    monkeypatch.setenv("HOPSML_CONF_DIR", str(path.parent))
    assert profiles.load("local").description == "planted"
    monkeypatch.delenv("HOPSML_CONF_DIR")
    for part in (path, path.parent):
        os.chown(part, 0, 0)
    assert profiles.load("local").description == "planted"


def test_files_of_the_owner_of_a_private_working_directory_are_used(shared: Path) -> None:
    """Root builds a clone that belongs to somebody else."""
    path = plant(shared, "conf", "local.yaml", content=PROFILE)
    os.chown(shared, OTHER, OTHER)
    shared.chmod(0o755)
    assert profiles.load("local").description == "planted"
    assert ownership.why_foreign(path, shared) == ""


@pytest.mark.parametrize("part", ["", "Experiments"])
def test_default_project_folder_of_another_user_is_refused(shared: Path, part: str) -> None:
    assert settings.project_url() == f"file://{shared}/.hopsml"
    folder = shared / ".hopsml" / part
    folder.mkdir(parents=True)
    os.chown(folder, OTHER, OTHER)
    with pytest.raises(ArgumentError, match=r"belongs to 12002, so that .* HOPSML_PROJECT_URL"):
        settings.project_url()


def test_hadoop_settings_of_another_user_count_only_in_a_container(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant(shared, "__spark_conf__", "__hadoop_conf__", "core-site.xml", content="<configuration/>")
    assert settings.hadoop_conf_dir() is None
    monkeypatch.setenv("CONTAINER_ID", "container_1")
    assert settings.hadoop_conf_dir() == path.parent
