"""Tests of uploaded code: equal bytes for equal files, and no writes elsewhere or without bound."""

from __future__ import annotations

import io
import os
import shutil
import stat
import struct
import time
import zipfile
from pathlib import Path

import pytest

from hopsml.core import profiles, settings
from hopsml.errors import ArgumentError, ServiceError
from hopsml.service import server, workspaces
from hopsml.service import spec as specs
from hopsml.service.lifecycle import TaskLaunch
from hopsml.service.spec.task import TaskEnvironment
from hopsml.service.store import JobStore, NewJob
from hopsml.service.workspaces import Workspaces, zip_folder
from hopsml.submission import script

pytestmark = pytest.mark.fast


@pytest.fixture
def code_store(tmp_path: Path) -> Workspaces:
    return Workspaces(tmp_path / "state", "file:///project", lambda owner, names: {})


def zipped(*files: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return content.getvalue()


def test_uploaded_folder_is_stored_without_hidden_and_cache_files(code_store: Workspaces, tmp_path: Path) -> None:
    code = tmp_path / "code"
    for name in ("train.py", "package/deep.py", ".git/config", ".venv/x.py", "package/__pycache__/deep.pyc", "run.sh"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    (code / "run.sh").chmod(0o755)
    (code / "outside").symlink_to("/etc/passwd")
    content = zip_folder(code)
    os.utime(code / "train.py", (1, 1))
    assert zip_folder(code) == content
    digest = code_store.store_zip(content)
    assert code_store.store_zip(content) == digest
    found = code_store.folder(digest)
    assert sorted(str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()) == [
        "package/deep.py",
        "run.sh",
        "train.py",
    ]
    assert (found / "package/deep.py").read_text() == "package/deep.py" and os.access(found / "run.sh", os.X_OK)
    assert stat.S_IMODE((tmp_path / "state" / "workspaces").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil.py", "a/../../evil.py"])
def test_zip_that_would_write_elsewhere_is_refused(code_store: Workspaces, tmp_path: Path, name: str) -> None:
    content = zipped(("good.py", b""), ("x" * len(name), b"evil")).replace(b"x" * len(name), name.encode())
    with pytest.raises(ArgumentError):
        code_store.store_zip(content)
    assert not list(tmp_path.rglob("*evil*")) and not list((tmp_path / "state" / "workspaces").iterdir())


def test_links_and_devices_are_refused(code_store: Workspaces) -> None:
    for kind in (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO):
        entry = zipfile.ZipInfo("link")
        entry.external_attr = (kind | 0o777) << 16
        with pytest.raises(ArgumentError, match="no plain file"):
            code_store.store_zip(zipped((entry, b"/etc/passwd")))


def test_zip_that_unpacks_beyond_the_limits_is_refused(code_store: Workspaces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "MOST_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(ArgumentError, match="unpacks to more than 1 MiB"):
        code_store.store_zip(zipped(("zeros", bytes(3 << 20))))
    monkeypatch.setattr(workspaces, "MOST_FILES", 5)
    with pytest.raises(ArgumentError, match="6 files"):
        code_store.store_zip(zipped(*((f"f{number}", b"") for number in range(6))))


def _damaged_content() -> bytes:
    content = bytearray(zipped(("a.py", b"print(1)\n" * 20)))
    at = content.index(b"a.py") + len("a.py")
    content[at : at + 4] = b"\xff" * 4  # of the compressed bytes
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\3\4 nonsense",
        zipped(("a.py", b"x" * 99))[:-30],
        _damaged_content(),
        zipped(("a.py", b"x")).replace(b"a.py", b"\0.py"),
    ],
    ids=["empty", "nonsense", "cut", "damaged content", "no name"],
)
def test_invalid_zip_is_refused(code_store: Workspaces, content: bytes) -> None:
    with pytest.raises(ArgumentError, match="no zip"):
        code_store.store_zip(content)


def test_missing_code_is_refused(code_store: Workspaces) -> None:
    for digest in ("", "0" * 64):
        with pytest.raises(ServiceError, match="submit the job again"):
            code_store.folder(digest)


def test_oversized_folder_is_refused_before_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(2 << 20))
    monkeypatch.setattr(workspaces, "MOST_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(ArgumentError, match="store data elsewhere"):
        zip_folder(tmp_path)


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_stored_files_are_private_regardless_of_the_umask(tmp_path: Path, umask: int) -> None:
    content = zipped(("train.py", b""), ("package/deep.py", b""), ("package/run.sh", b""))
    before = os.umask(umask)
    try:
        code_store = Workspaces(tmp_path / "state", "file:///project", lambda owner, names: {})
        store = JobStore.open(f"sqlite:///{tmp_path}/service.db")
        digest = code_store.store_zip(content)
        beside = sorted(tmp_path.glob("service.db*"))
        modes = {stat.S_IMODE(path.stat().st_mode) for path in beside}
        store.close()
    finally:
        os.umask(before)
    assert [path.name for path in beside] == ["service.db", "service.db-shm", "service.db-wal"] and modes == {0o600}
    root = code_store.folder(digest)
    assert {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]} == {
        True: 0o700,
        False: 0o600,
    }


TAKEN = "name: a\ntasks: {train: {script: train.py, environment: {archive: %s}}}\n"


@pytest.mark.parametrize(
    "archive",
    [
        "file:///home/service/secrets.key",
        "local:///etc/passwd",
        "http://169.254.169.254/latest/a.tar.gz",
        "https://internal/a.tar.gz",
        "hdfs://evil:8020/environments/a.tar.gz",
        "hdfs:///environments2/a.tar.gz",
        "hdfs:///environments",
        "HDFS:///elsewhere/a.tar.gz",
        "s3a://environments/a.tar.gz",
    ],
)
def test_archive_of_a_store_that_is_not_allowed_is_refused(tmp_path: Path, archive: str) -> None:
    code_store = Workspaces(tmp_path, "file:///project", lambda owner, names: {}, ("hdfs:///environments/", "s3a://e"))
    task = specs.Task.model_construct(environment=TaskEnvironment.model_construct(archive=archive))
    with pytest.raises(ArgumentError, match="hdfs:///environments/, s3a://e"):
        code_store.check_archives(specs.JobSpec.model_construct(tasks={"train": task}))
    with pytest.raises(ArgumentError, match="no store"):
        Workspaces(tmp_path, "file:///project", lambda owner, names: {}).check_archives(
            specs.loads(TAKEN % "hdfs:///environments/a.tar.gz")
        )
    for good in ("hdfs:///environments/a.tar.gz", "s3a://e/b/a.tar.gz"):
        code_store.check_archives(specs.loads(TAKEN % good))


def test_stored_job_with_a_disallowed_archive_is_not_submitted(tmp_path: Path) -> None:
    code_store = Workspaces(tmp_path, "file:///project", lambda owner, names: {}, ("hdfs:///environments",))
    spec = specs.loads(TAKEN % "hdfs://other/a.tar.gz")
    store = JobStore.open(f"sqlite:///{tmp_path}/service.db")
    row = store.submit(
        NewJob("a", "ann", "default", 50, "{}", "yarn-cluster", code_store.store_zip(zipped(("train.py", b"")))), 1.0
    )
    store.close()
    launch = TaskLaunch("train", 1, "hopsml-job-x-1-1")
    order = code_store.order(row, spec, launch, profiles.load("yarn-cluster"), "hopsml-job-x")
    with pytest.raises(
        ArgumentError, match=r"archive hdfs://other/a.tar.gz: environments are accepted only from hdfs:///env"
    ):
        order.plan()


def test_allowed_archive_stores_default_to_that_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed(project: str, *archives: str) -> tuple[str, ...]:
        return server._archives(server.ServerSettings(tmp_path, project_url=project, archives=archives))

    monkeypatch.setattr(settings, "default_fs", lambda: "hdfs://ns1")
    assert allowed("file:///project") == ()
    assert allowed("hdfs:///Projects/a") == allowed("hdfs://ns1/Projects/a") == ("hdfs://", "hdfs://ns1")
    assert allowed("hdfs://other/Projects/a") == ("hdfs://other",)
    assert allowed("s3a://bucket/a") == ("s3a://bucket",)
    assert allowed("s3a://bucket/a", "hdfs:///environments") == ("hdfs:///environments",)
    for wrong in ("file:///e", "/e", "http://host/e", "local:///e"):
        with pytest.raises(ArgumentError, match="--archives"):
            allowed("hdfs:///a", wrong)


@pytest.mark.parametrize("nested", ["x = 1" + "+1" * 200_000, "x = " + "-" * 300_000 + "1"])
def test_deeply_nested_code_is_refused_without_a_crash(code_store: Workspaces, nested: str) -> None:
    digest = code_store.store_zip(zipped(("train.py", nested.encode())))
    assert code_store.missing(specs.loads("name: a\ntasks: {train: {function: train.py:main}}\n"), digest) == []
    with pytest.raises(ArgumentError, match="too deep"):
        script.parse_script(str(code_store.folder(digest) / "train.py"))


@pytest.mark.parametrize("damage", ["emptied", "changed", "gone", "a folder"])
def test_damaged_code_is_restored_by_the_same_upload(code_store: Workspaces, damage: str) -> None:
    content = zipped(("train.py", b"print(1)"), ("package/deep.py", b"x = 1"))
    folder = code_store.folder(code_store.store_zip(content))
    file, other = folder / "package/deep.py", folder / "train.py"
    if damage in ("gone", "a folder"):
        file.unlink()
        if damage == "a folder":
            file.mkdir()
    else:
        file.write_bytes(b"" if damage == "emptied" else b"x = 2")
    (folder / "__pycache__").mkdir()  # what running it has left
    assert code_store.store_zip(content) == folder.name
    assert file.read_bytes() == b"x = 1" and other.read_bytes() == b"print(1)"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    (folder / "__pycache__").mkdir()
    stored = file.stat().st_ino
    assert code_store.store_zip(content) == folder.name and file.stat().st_ino == stored, (
        "nothing was wrong: nothing is written"
    )


# ---------------------------------------------------------------------------------------------- what is uploaded


def tree(folder: Path, *names: str) -> Path:
    """Create files that hold their name, and empty folders for names that end in ``/``."""
    for name in names:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text(name)
    return folder


def uploaded(code_store: Workspaces, folder: Path) -> dict[str, str]:
    found = code_store.folder(code_store.store_zip(zip_folder(folder)))
    return {
        f"{path.relative_to(found)}{'/' * path.is_dir()}": path.read_text() if path.is_file() else ""
        for path in found.rglob("*")
        if path.is_file() or not list(path.iterdir())
    }


def test_links_within_the_folder_are_followed(code_store: Workspaces, tmp_path: Path) -> None:
    code = tree(
        tmp_path / "code", "configs/base.yaml", "package/a.py", "package/deep/b.py", ".secret/key", ".env", "out/"
    )
    (code / "config.yaml").symlink_to("configs/base.yaml")
    (code / "absolute.yaml").symlink_to(code / "configs" / "base.yaml")
    (code / "conf").symlink_to("configs")
    (code / "chain.yaml").symlink_to("conf/base.yaml")
    (code / "key").symlink_to(".secret/key")
    (code / "package" / "up").symlink_to("../configs")
    (tmp_path / "by-link").symlink_to(code)
    for folder in (code, tmp_path / "by-link"):
        assert uploaded(code_store, folder) == {
            ".env": ".env",
            "configs/base.yaml": "configs/base.yaml",
            "package/a.py": "package/a.py",
            "package/deep/b.py": "package/deep/b.py",
            "config.yaml": "configs/base.yaml",
            "absolute.yaml": "configs/base.yaml",
            "conf/base.yaml": "configs/base.yaml",
            "chain.yaml": "configs/base.yaml",
            "key": ".secret/key",
            "package/up/base.yaml": "configs/base.yaml",
            "out/": "",
        }


def test_omitted_files_are_named_with_the_reason(
    code_store: Workspaces, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = tree(
        tmp_path / "code",
        "train.py",
        "old.pyc",
        ".streamlit/x",
        ".git/config",
        "package/__pycache__/a.pyc",
        "package/a.py",
    )
    tree(tmp_path, "data/rows.csv")
    (code / "data").symlink_to("../data")
    (code / "rows.csv").symlink_to(tmp_path / "data" / "rows.csv")
    (code / "gone").symlink_to("nothing")
    (code / "circle").symlink_to("circle")
    (code / "package" / "around").symlink_to("..")
    (code / "hooks").symlink_to(".git")
    os.mkfifo(code / "pipe")
    (code / "a\x1b[31m").symlink_to("/etc/passwd")
    assert uploaded(code_store, code) == {"train.py": "train.py", "package/a.py": "package/a.py"}
    (warning,) = caplog.messages
    assert warning == (
        f"not uploaded from {code}: folders of tools: .git, hooks, package/__pycache__; hidden folders: .streamlit; "
        "links out of the folder: a\\x1b[31m, data, rows.csv; links to nothing: circle, gone; compiled Python: old.pyc; "
        "links to a folder that they lie in: package/around; neither files nor folders: pipe"
    )
    caplog.clear()
    zip_folder(tree(tmp_path / "plain", "train.py"))
    assert caplog.messages == []


def test_exponential_links_are_refused_at_the_folder_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for level in range(30):  # each leads to the next level twice: a thousand million folders
        folder = tree(tmp_path / "code", f"level{level}/")
        for name in "ab":
            (folder / f"level{level}" / name).symlink_to(f"../level{level + 1}")
    with pytest.raises(ArgumentError, match="more than 5000 folders"):
        zip_folder(tmp_path / "code")


def test_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = tree(tmp_path / "code", "train.py", "secret.txt")
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "secret.txt":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ArgumentError, match=r"secret\.txt cannot be read: Permission denied"):
        zip_folder(code)


# ---------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a/" * 51 + "f"], "lies deeper than 50 folders"),
        (["a/" * 51], "lies deeper than 50 folders"),
        (["a/" * 400 + "f"], "lies deeper than 50 folders"),
        ([f"{number}/f" for number in range(61)], "more than 60 folders"),
        ([f"{number}/" for number in range(61)], "more than 60 folders"),
        (["/".join(map(str, range(number, number + 3))) + "/" for number in range(0, 61, 3)], "more than 60 folders"),
    ],
)
def test_folders_are_bounded_in_number_and_depth(
    code_store: Workspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], words: str
) -> None:
    monkeypatch.setattr(workspaces, "MOST_FOLDERS", 60)
    with pytest.raises(ArgumentError, match=words):
        code_store.store_zip(zipped(*((name, b"") for name in names)))
    assert not list((tmp_path / "state" / "workspaces").iterdir())
    if len(names[0]) < 200:
        with pytest.raises(ArgumentError, match=words):
            zip_folder(tree(tmp_path / "code", *names))
    code_store.store_zip(zipped(("a/" * 15 + "f", b""), ("b/" * 5, b"")))


def test_folder_entry_outside_the_zip_is_refused(code_store: Workspaces, tmp_path: Path) -> None:
    for name in ("../evil/", "/tmp/evil/", "a/../../evil/"):
        with pytest.raises(ArgumentError, match="no plain file below it"):
            code_store.store_zip(zipped((name, b"")))
    assert not list(tmp_path.rglob("*evil*"))


def test_uploads_of_a_user_are_bounded_until_they_are_removed(
    code_store: Workspaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspaces, "MOST_OF_A_USER_BYTES", 10_000)
    monkeypatch.setattr(workspaces, "MOST_OF_A_USER_ENTRIES", 12)
    first = code_store.store_zip(zipped(("a", bytes(4000))), "anna")
    code_store.store_zip(zipped(("b", bytes(4000))), "anna")
    assert code_store.store_zip(zipped(("a", bytes(4000))), "anna") == first  # it is counted already
    with pytest.raises(
        ArgumentError, match=r"2 workspaces that anna has uploaded, and of this one, has 3 files .*hopsml jobs rm"
    ):
        code_store.store_zip(zipped(("c", bytes(4000))), "anna")
    code_store.store_zip(zipped(("c", bytes(4000))), "bert")  # each user has a separate bound
    with pytest.raises(ArgumentError, match="anna"):
        code_store.store_zip(zipped(("c", bytes(4000))), "anna")  # though it is here
    with pytest.raises(ArgumentError, match="has 14 files and folders"):
        code_store.store_zip(zipped(*((f"f{number}/", b"") for number in range(12))), "anna")
    assert len(list((tmp_path / "state" / "workspaces").iterdir())) == 3
    assert (
        Workspaces(tmp_path / "state", "file:///project", lambda owner, names: {}).remove_unused(lambda: {first}, 1e12)
        == 2
    )
    code_store.store_zip(zipped(("c", bytes(4000))), "anna")


def test_code_found_by_a_submission_is_not_removed_as_unused(code_store: Workspaces, tmp_path: Path) -> None:
    """A job is submitted between the query for code in use and the removal of the rest."""
    found, other = code_store.store_zip(zipped(("a", b"1"))), code_store.store_zip(zipped(("b", b"2")))
    before_s = time.time() - 3600
    for digest in (found, other):
        os.utime(tmp_path / "state" / "workspaces" / digest, (0, 0))

    def in_use() -> set[str]:
        code_store.folder(found)  # by the submission, whose row is not stored yet
        return set()

    assert code_store.remove_unused(in_use, before_s) == 1
    assert (code_store.folder(found) / "a").read_bytes() == b"1"
    assert [path.name for path in (tmp_path / "state" / "workspaces").iterdir()] == [found]


def test_code_removed_during_its_lookup_is_missing(code_store: Workspaces, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = code_store.store_zip(zipped(("a", b"1")))
    change_times = os.utime

    def removed(path: Path) -> None:
        shutil.rmtree(path)
        change_times(path)

    monkeypatch.setattr(os, "utime", removed)
    with pytest.raises(ServiceError, match="submit the job again"):
        code_store.folder(digest)


def test_zip_with_a_million_entries_is_refused_before_it_is_read(code_store: Workspaces) -> None:
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, *(0,) * 6) + b"a"
    listed = entry * (workspaces.MOST_LISTED + 1)
    content = listed + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, len(listed), 0, 0)
    with pytest.raises(ArgumentError, match="lists more than 100000 entries"):
        code_store.store_zip(content)


def test_overlong_file_name_is_reported_as_a_missing_file(code_store: Workspaces) -> None:
    digest = code_store.store_zip(zipped(("train.py", b"")))
    job = specs.loads(f"name: a\ntasks: {{t: {{script: {'a' * 5000}.py}}}}\n")
    assert "there is no file" in code_store.missing(job, digest)[0]
