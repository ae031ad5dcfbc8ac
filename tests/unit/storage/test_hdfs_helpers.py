"""Tests of the predecessor's helper functions, with a project on the local disk and in memory."""

from __future__ import annotations

import importlib
import json
import os
import secrets
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hopsml import hdfs, numpy_helper, pandas_helper
from hopsml.errors import ArgumentError, ArgumentTypeError, PathExists, PathNotFound
from hopsml.hdfs import files
from hopsml.hdfs.metadata import permission_bits
from hopsml.storage.filesystem import for_url

pytestmark = pytest.mark.fast


@pytest.fixture(params=["file", "memory"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a project called demo, with a slash at the end; the working directory is tmp_path."""
    url = f"file://{tmp_path}/store" if request.param == "file" else f"memory://b/{secrets.token_hex(8)}"
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOPSML_PROJECT_URL", url)
    monkeypatch.setenv("HOPSML_PROJECT", "demo")
    for_url(url).make_dirs(url)
    return f"{url}/"


def test_project_path_name_and_user_follow_the_environment(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hdfs.project_path() == project
    assert hdfs.project_path(exclude_nn_addr=True) == hdfs.get_plain_path(project)
    assert hdfs.project_name() == "demo"
    monkeypatch.setenv("HADOOP_USER_NAME", "demo__meb10000")
    assert hdfs.project_user() == "demo__meb10000"
    assert hdfs.project_user("other") == "other__meb10000"
    monkeypatch.setenv("HADOOP_USER_NAME", "jim")
    assert hdfs.project_user() == "demo__jim"
    with pytest.raises(ArgumentError, match="Hopsworks"):
        hdfs.project_id()
    assert hdfs.get_plain_path("hdfs://10.0.0.1:8020/Projects/p/x") == "/Projects/p/x"
    assert hdfs.get_plain_path("/Projects/p/x") == "/Projects/p/x"


def test_dump_and_load_round_trip_bytes_and_text(project: str) -> None:
    hdfs.dump("text ü", "Resources/a.txt")
    hdfs.dump(b"\x00raw", "Resources/b.bin")
    assert hdfs.load("Resources/a.txt") == "text ü".encode()
    assert hdfs.load(project + "Resources/b.bin") == b"\x00raw"
    assert hdfs.load(b"Resources/b.bin") == b"\x00raw"
    assert hdfs.abs_path("Resources/a.txt") == project + "Resources/a.txt"
    with pytest.raises(IOError, match="none"):
        hdfs.abs_path("Resources/none")
    with pytest.raises(IOError, match="none"):
        hdfs.load("none")
    with pytest.raises(ArgumentTypeError, match="int"):
        hdfs.dump(7, "x")  # type: ignore[arg-type]


def test_absolute_paths_are_accepted_and_unknown_schemes_refused(project: str, tmp_path: Path) -> None:
    if project.startswith("file:"):
        hdfs.dump("x", "/Projects/demo/Resources/a")
        assert hdfs.load("Resources/a") == b"x"
        assert hdfs.exists(str(tmp_path / "store" / "Resources" / "a"))
    else:
        hdfs.dump("x", "/elsewhere/a")
        assert hdfs.ls("/elsewhere") == ["memory://b/elsewhere/a"]
    with pytest.raises(IOError, match="nosuch://"):  # other schemes
        hdfs.exists("nosuch://host/x")


def test_open_file_supports_the_flags_of_the_predecessor(project: str) -> None:
    with hdfs.open_file("f", flags="w") as file:
        file.write(b"one\n")
    with hdfs.open_file("f", flags="a") as file:
        file.write(b"two\n")
    with hdfs.open_file("f") as file:  # exists: read
        assert file.read() == b"one\ntwo\n"
    with hdfs.open_file("new") as file:  # does not: write
        file.write(b"new")
    with hdfs.open_file("f", flags="rt") as file:
        assert list(file) == ["one\n", "two\n"]
    with hdfs.open_file("t", flags="wt") as file:
        file.write("ü")
    assert hdfs.load("t") == "ü".encode()
    with pytest.raises(ArgumentError, match="flags='x'"):
        hdfs.open_file("f", flags="x")
    with hdfs.get_fs() as handle:
        assert handle.exists("f")
        assert handle.open_file("f").read() == b"one\ntwo\n"
        handle.create_directory("d/e")
        assert hdfs.isdir("d/e")
        handle.delete("d")
    assert not hdfs.get().exists("d")


def test_copy_to_hdfs_copies_files_and_folders(project: str) -> None:
    Path("data").mkdir()
    Path("data/sub").mkdir()
    Path("data/sub/x").write_text("x")
    Path("one.txt").write_text("1")
    hdfs.copy_to_hdfs("one.txt", "Resources")
    hdfs.copy_to_hdfs("data", "Resources")
    assert hdfs.load("Resources/one.txt") == b"1"
    assert hdfs.load("Resources/data/sub/x") == b"x"
    Path("one.txt").write_text("2")
    with pytest.raises(IOError, match="overwrite"):
        hdfs.copy_to_hdfs("one.txt", "Resources")
    hdfs.copy_to_hdfs("one.txt", "Resources", overwrite=True)
    assert hdfs.load("Resources/one.txt") == b"2"
    Path("data/sub/x").unlink()
    hdfs.copy_to_hdfs(os.path.abspath("data"), "Resources", overwrite=True)
    assert hdfs.ls("Resources/data", recursive=True) in ([project + "Resources/data/sub"], [])
    with pytest.raises(PathNotFound, match="nothing-here"):
        hdfs.copy_to_hdfs("nothing-here", "Resources", overwrite=True)


def test_copy_to_local_copies_what_differs(project: str) -> None:
    hdfs.dump("12345", "Resources/f")
    hdfs.dump("x", "Resources/d/x")
    assert hdfs.copy_to_local("Resources/f") == os.path.abspath("f")
    Path("f").write_text("abcde")  # as long: kept
    assert hdfs.copy_to_local("Resources/f") == os.path.abspath("f")
    assert Path("f").read_text() == "abcde"
    hdfs.copy_to_local("Resources/f", overwrite=True)
    assert Path("f").read_text() == "12345"
    Path("f").write_text("longer than it")
    assert hdfs.copy_to_local("Resources/f") == os.path.abspath("f")  # it differs: copied again
    assert Path("f").read_text() == "12345"
    os.utime("f", (1, 1))
    hdfs.dump("54321", "Resources/f")  # as long, but written later than the copy
    hdfs.copy_to_local("Resources/f")
    assert Path("f").read_text() == "54321"
    Path("into").mkdir()
    assert hdfs.copy_to_local(project + "Resources/d", "into") == os.path.abspath("into/d")
    assert Path("into/d/x").read_text() == "x"
    Path("into/d/x").write_text("y")
    hdfs.copy_to_local("Resources/d", "into")
    assert Path("into/d/x").read_text() == "y"  # the same names, as long: kept
    for change in (lambda: Path("into/d/x").write_text("longer"), lambda: Path("into/d/more").write_text("")):
        change()
        hdfs.copy_to_local("Resources/d", "into")
        assert Path("into/d/x").read_text() == "x" and os.listdir("into/d") == ["x"]
    hdfs.copy_to_local("Resources/d", "into", overwrite=True)
    assert Path("into/d/x").read_text() == "x"
    with pytest.raises(PathNotFound, match="missing-folder"):
        hdfs.copy_to_local("Resources/f", "missing-folder")
    with pytest.raises(PathNotFound):
        hdfs.copy_to_local("Resources/none", "into")
    assert sorted(os.listdir("into")) == ["d"]


def test_cp_move_and_rename_work_within_the_project(project: str) -> None:
    hdfs.dump("1", "a/f")
    hdfs.cp("a/f", "a/g")
    with pytest.raises(PathExists):
        hdfs.cp("a/f", "a/g")
    hdfs.dump("2", "a/f")
    hdfs.cp("a/f", "a/g", overwrite=True)
    assert hdfs.load("a/g") == b"2"
    hdfs.cp("a", "b")
    assert hdfs.load("b/g") == b"2"
    hdfs.mkdir("c")
    hdfs.move("b", "c")
    assert hdfs.load("c/b/g") == b"2"
    hdfs.rename("a/f", "a/h")
    assert not hdfs.exists("a/f")
    with pytest.raises(PathNotFound):
        hdfs.cp("none", "a/g", overwrite=True)
    assert hdfs.load("a/g") == b"2"


def test_listing_glob_and_delete_work_on_trees(project: str) -> None:
    for name in ("d/1.txt", "d/2.csv", "d/e/3.txt", "d/.hidden"):
        hdfs.dump(name, name)
    root = project + "d"
    assert hdfs.ls("d") == [f"{root}/{name}" for name in (".hidden", "1.txt", "2.csv", "e")]
    assert f"{root}/e/3.txt" in hdfs.ls("d", recursive=True)
    assert hdfs.ls("d/1.txt", exclude_nn_addr=True) == [hdfs.get_plain_path(f"{root}/1.txt")]
    assert hdfs.glob("d/*.txt") == [f"{root}/1.txt"]
    assert hdfs.glob("*/*/[0-9].txt") == [f"{root}/e/3.txt"]
    assert hdfs.glob("d/?.*") == [f"{root}/1.txt", f"{root}/2.csv"]
    assert hdfs.glob("d/e", recursive=True) == [f"{root}/e", f"{root}/e/3.txt"]
    assert hdfs.glob("none/*") == []
    entry = next(entry for entry in hdfs.lsl("d") if entry["name"].endswith("2.csv"))
    assert (entry["kind"], entry["size"]) == ("file", 7)
    assert {"owner", "group", "permissions", "last_mod", "replication", "block_size"} <= entry.keys()
    assert (hdfs.isdir("d"), hdfs.isfile("d"), hdfs.isfile("d/1.txt"), hdfs.isdir("d/none")) == (
        True,
        False,
        True,
        False,
    )
    with pytest.raises(PathNotFound):
        hdfs.ls("none")
    with pytest.raises(PathExists):
        hdfs.delete("d")
    hdfs.delete("d/1.txt")
    hdfs.rmr("d")
    assert not hdfs.exists("d")
    with pytest.raises(PathNotFound):
        hdfs.rmr("d")


def test_project_name_is_the_last_part_of_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPSML_PROJECT", raising=False)
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/Projects/fraud")
    monkeypatch.setenv("HADOOP_USER_NAME", "fraud__alice")
    assert hdfs.project_name() == "fraud" and hdfs.project_path().endswith("/Projects/fraud/")
    monkeypatch.setenv("HADOOP_USER_NAME", "bob")  # the user of that project's files
    assert (hdfs.project_name(), hdfs.project_user()) == ("fraud", "fraud__bob")
    hdfs.dump("x", f"/Projects/{hdfs.project_name()}/Resources/f")
    assert hdfs.load("Resources/f") == b"x" and hdfs.project_path(hdfs.project_name()) == hdfs.project_path()
    monkeypatch.setenv("HOPSML_PROJECT", "named")
    assert hdfs.project_name() == "named"
    monkeypatch.delenv("HOPSML_PROJECT")
    monkeypatch.delenv("HOPSML_PROJECT_URL")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert hdfs.project_name() == "bob"  # the folder .hopsml is no project's name


def test_stat_returns_the_mode_set_by_chmod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/p")
    hdfs.dump("x", "f")
    hdfs.mkdir("d")
    for mode, bits in (
        (775, 0o775),
        ("640", 0o640),
        ("ug+rwx", 0o770),
        ("o=r,g-w", 0o754),
        ("a-x", 0o644),
        ("+X", 0o644),
    ):
        hdfs.chmod("f", mode)
        assert hdfs.stat("f").st_mode == hdfs.lsl("f")[0]["permissions"] == bits, mode
    hdfs.chmod("d", 700)
    hdfs.chmod("d", "g+rX")
    found = hdfs.stat("d", "p")
    assert (found.st_mode, found.kind, found.st_nlink) == (0o750, "directory", 1)
    for wrong in ("rwx", "u*x", "789"):
        with pytest.raises(ArgumentError, match="write it as in a shell"):
            hdfs.chmod("f", wrong)


def test_chmod_access_and_chown_follow_shell_notation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    hdfs.dump("x", "f")
    hdfs.chmod("f", 700)
    assert hdfs.stat("f").st_mode & 0o777 == 0o700
    hdfs.chmod("f", "640")
    found = hdfs.stat("f")
    assert (found.st_mode & 0o777, found.st_size, found.kind) == (0o640, 1, "file")
    hdfs.chmod("f", 775)
    assert hdfs.stat("f").st_mode & 0o777 == 0o775
    hdfs.chmod("f", 0o644)  # 420
    assert hdfs.stat("f").st_mode & 0o777 == 0o644
    hdfs.chmod("f", 640)
    with pytest.raises(ArgumentError, match="mode=789"):
        hdfs.chmod("f", 789)
    facts = os.stat(tmp_path / "f")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")  # a local disk does not know that name
    for name, user, groups, allowed in (
        ("others", facts.st_uid + 1, [], ""),
        ("group", facts.st_uid + 1, [facts.st_gid], "r"),
        *([("owner", facts.st_uid, [], "rw")] if facts.st_uid else [("root", 0, [], "rwx")]),
    ):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        monkeypatch.setattr(os, "getegid", lambda: facts.st_gid + 1)
        monkeypatch.setattr(os, "getgroups", lambda groups=groups: groups)
        rights = {"r": os.R_OK, "w": os.W_OK, "x": os.X_OK}
        assert "".join(sign for sign, bit in rights.items() if hdfs.access("f", bit)) == allowed, name
    assert hdfs.access("none", 0) is False
    monkeypatch.undo()
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    hdfs.chown("f", "", "")
    assert hdfs.capacity() > 1 << 20


def test_local_mirror_path_refers_to_its_remote_path(tmp_path: Path) -> None:
    """The path is ``tensorboard.logdir()`` inside a worker, joined as published code does."""
    remote = f"memory://bucket/{secrets.token_hex(8)}/events"
    logdir = f"{tmp_path}/{remote}"
    Path(logdir).mkdir(parents=True)
    assert hdfs.isdir(logdir) and hdfs.ls(logdir) == [] and hdfs.exists(remote)  # before anything is in it
    hdfs.mkdir(logdir + "/model")
    hdfs.dump("x", os.path.join(logdir, "model", "f"))
    assert hdfs.load(f"{remote}/model/f") == b"x"
    assert hdfs.ls(str(Path(logdir) / "model")) == [f"{remote}/model/f"]
    assert os.listdir(logdir) == []


def test_tensorboard_fetch_appends_to_event_files_only(tmp_path: Path) -> None:
    """Other files in the folder are copied completely, as they may have become longer."""
    from hopsml.notebook.tensorboard_server import copy_grown_files

    events, copies = tmp_path / "run" / "events", tmp_path / "copies"
    events.mkdir(parents=True)
    for first, second in ((b"one", b"one, two"), (b"one, two", b"other text")):
        for data in (first, second):
            (events / "checkpoint").write_bytes(data)
            copy_grown_files(f"file://{events}", copies)
            assert (copies / "checkpoint").read_bytes() == data


def test_add_module_imports_python_files_and_notebooks(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    stem = f"mod_{secrets.token_hex(4)}"
    hdfs.dump("VALUE = 41\n", f"Resources/{stem}.py")
    local = hdfs.add_module(f"Resources/{stem}.py")
    assert local in sys.path and os.path.dirname(local) in sys.path
    assert importlib.import_module(stem).VALUE == 41
    hdfs.dump("VALUE = 412\n", f"Resources/{stem}.py")
    assert hdfs.add_module(f"Resources/{stem}.py") == local and importlib.import_module(stem).VALUE == 412
    cells = [
        {"cell_type": "markdown", "source": ["# text"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "def double(x):\n", "    return 2 * x"]},
        {"cell_type": "code", "source": "!pip list\nVALUE = double(21)"},
        {"cell_type": "code", "source": "%%bash\necho no Python"},
        {"cell_type": "code", "source": '%%time\nREST = (\n    44\n    % 42\n)\nTEXT = """a\n% b\n"""\n'},
    ]
    hdfs.dump(json.dumps({"cells": cells}), f"Resources/{stem}_nb.ipynb")
    other = hdfs.add_module(f"Resources/{stem}_nb.ipynb")
    made = importlib.import_module(f"{stem}_nb")
    assert (made.VALUE, made.REST, made.TEXT) == (42, 2, "a\n% b\n")
    del sys.modules[stem], sys.modules[f"{stem}_nb"]
    assert Path(local).parent == Path(other).parent
    files._module_folder().cleanup()  # as at the end of the process
    files._module_folder.cache_clear()
    with pytest.raises(ArgumentError, match="identifier"):
        hdfs.add_module("Resources/not-a-module.py")


def test_log_tls_and_webhdfs_helpers_follow_the_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hdfs.log("a line")
    hdfs.log(b"bytes")
    assert capsys.readouterr().out == "a line\nbytes\n"
    assert hdfs.is_tls_enabled() is False
    with pytest.raises(ArgumentError, match="HADOOP_CONF_DIR"):
        hdfs.get_webhdfs_port()
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn1:8020</value></property>"
        "<property><name>ipc.server.ssl.enabled</name><value>true</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    assert (hdfs.get_webhdfs_host(), hdfs.get_webhdfs_port()) == ("nn1", 9870)
    assert hdfs.is_tls_enabled() is True
    hdfs.close()


def test_public_names_are_sorted_and_exist() -> None:
    assert sorted(hdfs.__all__) == hdfs.__all__
    assert all(hasattr(hdfs, name) for name in hdfs.__all__)


@pytest.mark.parametrize(
    "bits", [0o777, 0o775, 0o770, 0o755, 0o750, 0o700, 0o664, 0o660, 0o644, 0o640, 0o600, 0o555, 0o444]
)
def test_mode_has_the_same_meaning_as_shell_digits_and_as_a_literal(bits: int) -> None:
    digits = f"{bits:o}"
    assert permission_bits(int(digits)) == permission_bits(digits) == permission_bits(bits) == bits


def test_invalid_modes_are_refused() -> None:
    assert permission_bits(1777) == 0o1777 and permission_bits("0700") == permission_bits("0o700") == 0o700
    for wrong in (789, -1, "u+x", 77777):
        with pytest.raises(ArgumentError, match="mode="):
            permission_bits(wrong)


def test_numpy_helper_reads_and_writes_project_files(project: str) -> None:
    array = np.arange(6.0).reshape(2, 3)
    numpy_helper.save("Resources/a.npy", array)
    numpy_helper.save("Resources/b", array)  # numpy adds the ending
    assert (numpy_helper.load("Resources/a.npy") == array).all() and hdfs.exists("Resources/b.npy")
    for write in (numpy_helper.savez, numpy_helper.savez_compressed):
        write("Resources/c.npz", array, other=array + 1)
        found = numpy_helper.load("Resources/c.npz")
        assert (found["arr_0"] == array).all() and (found["other"] == array + 1).all()
    hdfs.dump("1,2\n3,4\n", "Resources/t.csv")
    assert numpy_helper.loadtxt("Resources/t.csv", delimiter=",").tolist() == [[1, 2], [3, 4]]
    assert numpy_helper.genfromtxt("Resources/t.csv", delimiter=",").tolist() == [[1, 2], [3, 4]]
    assert numpy_helper.fromregex("Resources/t.csv", regexp=rb"(\d),(\d)", dtype=[("a", int), ("b", int)])[
        "b"
    ].tolist() == [2, 4]
    hdfs.dump(array.tobytes(), "Resources/raw")
    assert numpy_helper.fromfile("Resources/raw", dtype=float).tolist() == array.ravel().tolist()
    mapped = numpy_helper.memmap("Resources/raw", dtype=float, shape=(2, 3))
    assert (mapped == array).all() and isinstance(mapped, np.memmap)
    with pytest.raises(IOError):
        numpy_helper.load("Resources/none.npy")


def test_pandas_helper_reads_and_writes_project_files(project: str) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    pandas_helper.write_csv("Resources/t.csv", frame, index=False)
    assert hdfs.load("Resources/t.csv") == b"a,b\n1,x\n2,y\n"
    pandas_helper.write_parquet("Resources/t.parquet", frame)
    pandas_helper.write_json("Resources/t.json", frame, orient="records")
    for found in (
        pandas_helper.read_csv("Resources/t.csv"), pandas_helper.read_parquet("Resources/t.parquet"),
        pandas_helper.read_json("Resources/t.json", orient="records"),
    ):  # fmt: skip
        assert found.equals(frame)


@pytest.mark.parametrize("source", ["Resources/x.csv", "Resources/d"])
def test_copy_onto_itself_is_refused_without_data_loss(project: str, source: str) -> None:
    hdfs.dump("rows", "Resources/x.csv")
    hdfs.dump("kept", "Resources/d/k")
    with pytest.raises(ArgumentError, match="holds, the other"):
        hdfs.cp(source, "Resources", overwrite=True)
    with pytest.raises(ArgumentError, match="holds, the other"):
        hdfs.cp("Resources/d", "Resources/d", overwrite=True)
    assert hdfs.load("Resources/x.csv") == b"rows" and hdfs.load("Resources/d/k") == b"kept"
    if project.startswith("file://"):
        folder = project.removeprefix("file://") + "Resources"
        with pytest.raises(ArgumentError, match="holds, the other"):
            hdfs.copy_to_local(source, folder, overwrite=True)
        with pytest.raises(ArgumentError, match="holds, the other"):
            hdfs.copy_to_hdfs(f"{folder}/{source.rpartition('/')[2]}", "Resources", overwrite=True)
    assert hdfs.load("Resources/x.csv") == b"rows" and hdfs.load("Resources/d/k") == b"kept"


def test_folder_and_file_of_the_same_name_replace_each_other(project: str) -> None:
    hdfs.dump("1", "a/f/x")
    hdfs.dump("2", "b/f")
    hdfs.cp("b/f", "a", overwrite=True)
    assert hdfs.load("a/f") == b"2"
    hdfs.dump("3", "c/f/y")
    hdfs.cp("c/f", "b", overwrite=True)
    assert hdfs.load("b/f/y") == b"3"


def test_pandas_and_numpy_helpers_accept_positional_arguments(project: str) -> None:
    hdfs.dump("a;b\n1;2\n", "t.csv")
    frame = pandas_helper.read_csv("t.csv", ";")
    assert frame.to_dict("list") == {"a": [1], "b": [2]}
    pandas_helper.write_csv("u.csv", frame, ";", index=False)
    assert hdfs.load("u.csv") == b"a;b\n1;2\n"
    pandas_helper.write_json("u.json", frame, "records")
    assert json.loads(hdfs.load("u.json")) == [{"a": 1, "b": 2}]
    for wrong in (
        lambda: pandas_helper.read_csv("t.csv", ";", sep=","),
        lambda: pandas_helper.read_csv("t.csv", *"x" * 99),
    ):
        with pytest.raises(ArgumentTypeError, match="give its arguments by name"):
            wrong()
    assert numpy_helper.loadtxt("t.csv", float, "#", ";", None, 1).tolist() == [1.0, 2.0]
