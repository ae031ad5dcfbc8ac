"""Tests of a job's code in a folder, a zip or a git repository, which is unpacked when the job is submitted."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError, JobFileError
from hopsml.service.code import local_code
from hopsml.service.spec import JobSpec, dump, loads

pytestmark = pytest.mark.fast


def job(code: str) -> JobSpec:
    return loads(f"name: small\ncode: '{code}'\ntasks:\n  train: {{script: train.py}}\n")


def stored(job: JobSpec) -> str:
    """Return a job as the database stores it."""
    return job.model_dump_json(by_alias=True, exclude_unset=True)


def test_path_as_workspace_alone_is_the_code_as_in_earlier_job_files() -> None:
    start = "name: a\ntasks: {train: {script: train.py}}\n"
    for given, code, workspace in (
        ("workspace: src", "src", False),
        ("workspace: /src", "/src", False),
        ("workspace: true", ".", True),
        ("workspace: hdfs:///shared", ".", "hdfs:///shared"),
        ("code: .\nworkspace: /shared", ".", "/shared"),
    ):
        loaded = loads(f"{start}{given}\n")
        for again in (loaded, loads(dump(loaded)), JobSpec.model_validate_json(stored(loaded))):
            assert (again.code, again.workspace) == (code, workspace), given


def test_zip_is_unpacked_for_the_submission(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("train.py", "print(1)\n")
    with local_code(job("code.zip"), tmp_path / "job.yaml") as folder:
        assert [path.name for path in folder.iterdir()] == ["train.py"]
    assert not folder.exists()
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("../train.py", "print(1)\n")
    with pytest.raises(ArgumentError, match="is no plain file below it"), local_code(job("code.zip"), tmp_path / "job"):
        pass


def git_in(folder: Path, *words: str) -> str:
    line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(line, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_repository_whose_hook_submits_a_job_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("source", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").touch()
        git_in(tmp_path / name, "init", "--quiet")
        git_in(tmp_path / name, "add", ".")
        git_in(tmp_path / name, "commit", "--quiet", "--message", name)
    before = git_in(tmp_path / "own", "rev-parse", "HEAD"), git_in(tmp_path / "own", "ls-files")
    with monkeypatch.context() as of_hook:
        of_hook.setenv("GIT_DIR", str(tmp_path / "own" / ".git"))
        of_hook.setenv("GIT_INDEX_FILE", str(tmp_path / "own" / ".git" / "index"))
        with local_code(job(f"file://{tmp_path}/source"), tmp_path / "job.yaml") as folder:
            assert (folder / "source.py").exists()
    assert before == (git_in(tmp_path / "own", "rev-parse", "HEAD"), git_in(tmp_path / "own", "ls-files"))


@pytest.mark.parametrize(
    "field",
    [
        "code: https://user:hunter2@host/code.git",
        "code: https://ghp_0123456789@host/code.git",
        "code: ssh://user:hunter2@host/code.git",
        "dataset: https://user:hunter2@host/a",
        "datasets: {a: 'https://user:hunter2@host/a'}",
        "datasets: {a: {url: 's3://id:hunter2@bucket/a'}}",
        "code: .\nworkspace: webhdfs://user:hunter2@host/a",
    ],
)
def test_password_in_a_url_is_refused_since_others_can_read_the_job(field: str) -> None:
    with pytest.raises(JobFileError, match="contains a password, and job files are readable by other users") as refused:
        loads(f"name: a\n{field}\ntasks: {{train: {{script: train.py}}}}\n")
    assert "hunter2" not in str(refused.value) and "ghp_" not in str(refused.value)


@pytest.mark.parametrize(
    "field",
    ["code: ssh://git@host:22/a:b@c.git", "code: git@host:a.git", "datasets: {a: 'abfss://container@account/x:y@z'}"],
)
def test_user_in_a_url_is_no_password(field: str) -> None:
    loads(f"name: a\n{field}\ntasks: {{train: {{script: train.py}}}}\n")


def test_git_repository_is_checked_out_at_its_revision(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()

    def git(*words: str) -> str:
        line = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(line, cwd=source, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet", "--initial-branch", "main")
    commits = []
    for number in (1, 2):
        (source / "train.py").write_text(f"print({number})\n")
        git("add", "train.py")
        git("commit", "--quiet", "--message", f"{number}")
        commits.append(git("rev-parse", "HEAD"))
    git("branch", "old", commits[0])
    for revision, expected in (("", 2), ("#old", 1), (f"#{commits[0]}", 1), ("#main", 2)):
        with local_code(job(f"file://{source}{revision}"), tmp_path / "job.yaml") as folder:
            assert (folder / "train.py").read_text() == f"print({expected})\n", revision
    for wrong, message in (
        (f"file://{source}#none", "git fetch failed: .*none.*; check the URL and the revision behind #"),
        (f"file://{source}#--upload-pack=touch x", "is no branch, tag or commit"),
        ("ext::sh -c touch% x://a", "git fetch failed: .*transport 'ext' not allowed"),
    ):
        with pytest.raises(ArgumentError, match=message), local_code(job(wrong), tmp_path / "job.yaml"):
            pass
