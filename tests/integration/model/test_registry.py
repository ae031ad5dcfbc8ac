"""Tests of the registry on the local disk and on an fsspec store: listing, search and errors."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from hopsml import hdfs
from hopsml import model as registry
from hopsml.errors import (
    ArgumentError,
    ArgumentTypeError,
    ModelExists,
    ModelNotFound,
    PathNotFound,
    QuotaExceeded,
    StorageError,
)
from hopsml.model import directory
from hopsml.model.description import checked_metrics, usual_direction
from hopsml.model.version import DamagedModel, Version
from hopsml.serving import definitions
from hopsml.storage import checkpoints, trust, urls
from hopsml.storage.filesystem import for_url
from tests.helpers import small_disk
from tests.integration.model.conftest import MakeFolder

pytestmark = pytest.mark.local


def exported(source: Path, name: str = "digits", **named: object) -> Version:
    version = registry.export(source, name, **named)  # type: ignore[arg-type]
    assert version is not None
    return version


def test_exported_version_is_found_with_its_description_and_files(
    project: str, folder: MakeFolder, tmp_path: Path
) -> None:
    made = exported(folder("one"), metrics={"accuracy": np.float32(0.5)}, description="the first")
    found = registry.find("digits")
    assert (found.name, found.version, found.url) == ("digits", 1, f"{project}/Models/digits/1") == (*made_of(made),)
    assert found.metrics == found["metrics"] == found.training_metrics == {"accuracy": 0.5}
    assert found["description"] == found.description.description == "the first"
    assert found.model_path == f"{project}/Models/digits" and found.version_path == found.url
    assert found.description == made.description and dict(found) == dict(made)
    local = found.local_files(private(tmp_path / "cache"))
    assert (local / "weights.bin").read_bytes() == b"one" * 100 and (local / "inner" / "more.txt").read_text() == "one"
    assert found.local_files(tmp_path / "cache") == local


def entries(version: Version) -> list[str]:
    """Names of the files and folders of a version's directory, without its records."""
    found = os.listdir(version.url.removeprefix("file://"))
    return sorted(set(found) - {"claim.json", "model.json"})


def test_model_files_are_directly_in_the_version_directory(project: str, folder: MakeFolder, tmp_path: Path) -> None:
    first = exported(folder("one"))
    assert entries(first) == ["inner", "weights.bin"] and first.files_url == first.url
    assert hdfs.load("Models/digits/1/weights.bin") == b"one" * 100
    replaced = exported(folder("two"), model_version=1, overwrite=True)
    (below,) = entries(replaced)  # until it is complete the files of the earlier one are needed
    assert below.startswith("files-") and replaced.files_url == f"{first.url}/{below}"
    again = exported(folder("three"), model_version=1, overwrite=True)
    assert len(entries(again)) == 1 and entries(again) != [below]
    assert (again.local_files(private(tmp_path / "cache")) / "weights.bin").read_bytes() == b"three" * 100
    registry.delete("digits", 1)
    assert entries(again) == []


def test_version_of_an_earlier_release_has_its_files_in_a_subfolder(
    project: str, folder: MakeFolder, tmp_path: Path
) -> None:
    place = Path(exported(folder("one")).url.removeprefix("file://"))
    (place / "files").mkdir()
    for name in ("inner", "weights.bin"):
        (place / name).rename(place / "files" / name)
    described = json.loads((place / "model.json").read_text())
    (place / "model.json").write_text(json.dumps({**described, "folder": "files", "format": 1}))
    found = registry.find("digits", 1)
    assert (found.local_files(private(tmp_path / "cache")) / "inner" / "more.txt").read_text() == "one"
    replaced = exported(folder("two"), model_version=1, overwrite=True)
    assert entries(replaced) == [replaced.description.folder]


@pytest.mark.parametrize("name", ["model.json", "claim.json"])
def test_model_file_may_have_the_name_of_a_record(project: str, folder: MakeFolder, tmp_path: Path, name: str) -> None:
    source = folder("one")
    (source / name).write_text("a booster")
    version = exported(source)
    assert entries(version) == ["files"]
    assert (version.local_files(private(tmp_path / "cache")) / name).read_text() == "a booster"


def test_failed_export_leaves_no_files(project: str, folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StorageError("the store is full", "x")

    monkeypatch.setattr(trust, "write_bytes", fail)
    with pytest.raises(StorageError, match="the store is full"):
        exported(folder("one"))
    assert os.listdir(project.removeprefix("file://") + "/Models/digits/1") == ["claim.json"]


def made_of(version: Version) -> tuple[str, int, str]:
    return version.name, version.version, version.url


def private(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    return folder


def test_registry_works_on_an_object_store(monkeypatch: pytest.MonkeyPatch, folder: MakeFolder, tmp_path: Path) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"memory://bucket/{tmp_path.name}")
    for word in ("one", "two"):
        exported(folder(word))
    registry.set_alias("digits", 1, "production")
    assert [one.version for one in registry.versions("digits")] == [1, 2] and registry.models() == ["digits"]
    found = registry.find("digits", "production").local_files(private(tmp_path / "cache"))
    assert (found / "inner" / "more.txt").read_text() == "one"
    registry.delete("digits", 1, force=True)
    assert registry.aliases("digits") == {} and exported(folder("three")).version == 3


def test_version_is_selected_by_number_alias_or_best_metric(project: str, folder: MakeFolder) -> None:
    for word, accuracy, loss in (("a", 0.7, 0.2), ("b", 0.9, 0.3), ("c", 0.9, 0.1)):
        exported(folder(word), metrics={"accuracy": accuracy, "val_loss": loss})
    registry.set_alias("digits", "latest", "production")
    registry.set_alias("digits", 1, "canary")
    registry.set_alias("digits", 2, "canary")
    assert registry.aliases("digits") == {"production": 3, "canary": 2}
    wanted = {
        "latest": 3,
        2: 2,
        "2": 2,
        "production": 3,
        "best:accuracy": 3,
        "best:val_loss": 3,
        "best:val_loss:MAX": 2,
    }
    assert {selector: registry.find("digits", selector).version for selector in wanted} == wanted  # type: ignore[arg-type]
    assert registry.get_best_model("digits", "accuracy", registry.Metric.MIN).version == 1
    assert registry.get_best_model("digits", "val_loss", "max").version == 2
    registry.delete_alias("digits", "canary")
    assert registry.aliases("digits") == {"production": 3}


def test_project_created_by_a_model_export_is_private_unless_shared(
    project: str, folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = exported(folder("a"))
    files = Path(version.url.removeprefix("file://"))
    assert {at.stat().st_mode & 0o777 for at in (files.parents[2], files.parents[1], files / "inner")} == {0o700}
    assert {at.stat().st_mode & 0o777 for at in files.rglob("*") if at.is_file()} == {0o600}
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"{project}-shared")
    monkeypatch.setenv("HOPSML_SHARE", "all")
    shared = Path(exported(folder("b")).url.removeprefix("file://"))
    assert {at.stat().st_mode & 0o777 for at in (shared, *shared.parents[:3])} == {0o755}


def test_best_without_a_metric_uses_the_only_one(project: str, folder: MakeFolder) -> None:
    exported(folder("a"), metrics={"loss": 0.1})
    exported(folder("b"), metrics={"loss": 0.2})
    exported(folder("c"))
    assert registry.find("digits", "best").version == 1
    assert [usual_direction(name) for name in ("val_loss", "meanSquaredError", "accuracy", "lossless")] == [
        "MIN", "MIN", "MAX", "MAX",
    ]  # fmt: skip


def test_unknown_model_version_or_metric_error_lists_the_existing_ones(project: str, folder: MakeFolder) -> None:
    with pytest.raises(ModelNotFound, match=r"there is no model 'digits' in .*Models; there are none"):
        registry.find("digits")
    exported(folder("a"), metrics={"accuracy": 0.5, "recall": 0.5})
    exported(folder("b"))
    registry.set_alias("digits", 1, "production")
    for lookup, words in (
        (lambda: registry.find("digit"), "no model 'digit' .*did you mean digits"),
        (lambda: registry.find("digits", 3), "no version 3; it has 1, 2"),
        (lambda: registry.find("digits", "prodction"), "versions: 1, 2.*did you mean production"),
        (lambda: registry.get_best_model("digits", "acuracy", "MAX"), "metric 'acuracy'; did you mean accuracy"),
        (
            lambda: registry.get_best_model("digits", "accuracy", "UP"),
            "direction='UP': the direction must be MAX or MIN",
        ),
        (
            lambda: registry.find("digits", "best"),
            "several metrics: accuracy, recall; select one, such as 'best:accuracy'",
        ),
        (lambda: registry.find("digits", "best:"), "'best:': the version must be 'best', or 'best:METRIC'"),
        (lambda: registry.delete_alias("digits", "canary"), "no version or alias 'canary'"),
        (lambda: registry.set_alias("digits", 9, "canary"), "no version 9"),
    ):
        with pytest.raises(ArgumentError, match=words):
            lookup()


@pytest.mark.parametrize("alias", ["latest", "best", "3", "v1", "", "a/b", "-x"])
def test_invalid_alias_is_refused(project: str, folder: MakeFolder, alias: str) -> None:
    exported(folder("a"))
    with pytest.raises(ArgumentError, match="alias="):
        registry.set_alias("digits", 1, alias)


@pytest.mark.parametrize(
    ("metrics", "error", "words"),
    [
        ({"accuracy": "0.5"}, ArgumentTypeError, r"metrics\['accuracy'\]='0.5' is a str"),
        ({"accuracy": True}, ArgumentTypeError, "is a bool"),
        ({"loss": float("nan")}, ArgumentError, r"metrics\['loss'\]=nan: it must be a finite"),
        ({"loss": np.zeros(2)}, ArgumentTypeError, "is a ndarray"),
        ({1: 0.5}, ArgumentTypeError, "the name 1 must be text"),
        ([0.5], ArgumentTypeError, "must be a dict"),
    ],
)
def test_invalid_metrics_are_refused(metrics: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        checked_metrics(metrics)


def test_unknown_metric_raises_model_not_found(project: str, folder: MakeFolder) -> None:
    registry.export(str(folder("w")), "digits", metrics={"accuracy": 0.9})
    for call in (
        lambda: registry.get_best_model("digits", "acuracy", "MAX"),
        lambda: registry.find("digits", "best:acuracy"),
        lambda: registry.get_best_model("none", "accuracy", "MAX"),
    ):
        with pytest.raises(ModelNotFound):
            call()
    with pytest.raises(ArgumentError) as caught:  # as the predecessor, which raised another error for it
        registry.get_best_model("digits", "accuracy", "UP")
    assert not isinstance(caught.value, ModelNotFound)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "x" * 300, 3])
def test_invalid_model_name_is_refused(project: str, folder: MakeFolder, name: object) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="model_name="):
        registry.export(folder("a"), name)  # type: ignore[arg-type]


def test_version_number_is_used_once(project: str, folder: MakeFolder) -> None:
    exported(folder("a"), model_version=5)
    with pytest.raises(ModelExists, match="version 5 of the model 'digits' already exists"):
        exported(folder("b"), model_version=5)
    assert exported(folder("c")).version == 6
    registry.delete("digits", 6)
    assert exported(folder("d")).version == 7
    with pytest.raises(ModelExists, match="is locked: its export is running or was killed, or it was deleted"):
        exported(folder("e"), model_version=6)
    again = exported(folder("f"), model_version=5, overwrite=True)
    assert again.version == 5 and "weights.bin" in again.description.files
    assert [one.version for one in registry.versions("digits")] == [5, 7]


def test_version_with_an_alias_is_deleted_only_with_force(project: str, folder: MakeFolder) -> None:
    exported(folder("a"))
    exported(folder("b"))
    registry.set_alias("digits", 1, "production")
    with pytest.raises(
        ArgumentError, match=r"nothing was deleted, since version 1 of the model 'digits' is production"
    ):
        registry.delete("digits", 1)
    registry.delete("digits", 1, force=True)
    registry.delete("digits", "latest")
    with pytest.raises(ModelNotFound, match="no model 'digits'"):
        registry.find("digits")


def test_overtaken_export_does_not_count(project: str, folder: MakeFolder) -> None:
    """The version is overwritten while its files are uploaded."""
    url = f"{project}/Models/digits"
    slow = directory.acquire_version(url, 1)
    slow.fill(folder("slow"))
    fast = exported(folder("fast"), model_version=1, overwrite=True)
    with pytest.raises(StorageError, match="locked by another exporter while the model was exported"):
        slow.complete(fast.description)
    assert registry.find("digits", 1).description.digest == fast.description.digest


def test_version_remains_usable_while_it_is_overwritten(project: str, folder: MakeFolder, tmp_path: Path) -> None:
    old = exported(folder("old"))
    registry.set_alias("digits", 1, "production")
    claim = directory.acquire_version(old.model_path, 1, overwrite=True)
    claim = claim.fill(folder("failed"))
    assert registry.find("digits", "production").description == old.description
    claim.give_up()
    old.local_files(private(tmp_path / "cache"))
    new = exported(folder("new"), model_version=1, overwrite=True)
    found = registry.find("digits", "production")
    assert found.description == new.description
    assert (found.local_files(private(tmp_path / "other")) / "weights.bin").read_bytes() == b"new" * 100
    names = {entry.name for entry in for_url(new.url).list_dir(new.url)}
    assert names == {"claim.json", "model.json", found.description.folder}, "nothing of the old one"


@pytest.mark.parametrize("overwrite", [False, True])
def test_version_deleted_during_its_export_is_not_completed(project: str, folder: MakeFolder, overwrite: bool) -> None:
    url = f"{project}/Models/digits"
    made = exported(folder("first"), model_version=1) if overwrite else exported(folder("other"), model_version=9)
    claim = directory.acquire_version(url, 1, overwrite)
    claim.fill(folder("slow"))
    registry.delete("digits", 1)
    with pytest.raises(StorageError, match="was deleted or locked by another exporter while the model was exported"):
        claim.complete(made.description)
    with pytest.raises(ModelNotFound):
        registry.find("digits", 1)
    assert [entry.name for entry in for_url(claim.url).list_dir(claim.url)] == ["claim.json"]


def test_changed_model_file_is_not_used(project: str, folder: MakeFolder, tmp_path: Path) -> None:
    version = exported(folder("a"))
    place = urls.join(version.files_url, "weights.bin")
    for_url(place).write_bytes(place, b"b" * 100)
    with pytest.raises(DamagedModel, match=r"weights.bin differs from the exported file \(100 bytes"):
        version.local_files(private(tmp_path / "cache"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_files_not_in_the_description_are_not_copied(project: str, folder: MakeFolder, tmp_path: Path) -> None:
    """Whoever may write to the folder of a version can add files there, which no digest covers."""
    version = exported(folder("a"))
    for name in ("planted.pbtxt", "assets/planted"):
        place = urls.join(version.files_url, name)
        for_url(place).write_bytes(place, b"code")
    copy = version.local_files(private(tmp_path / "cache"))
    assert sorted(path.name for path in copy.rglob("*") if path.is_file()) == ["more.txt", "weights.bin"]


@pytest.mark.parametrize("change", [{"artifacts": {"sklearn": "other"}}, {"folder": "elsewhere"}, {"files": {}}])
def test_description_replaced_after_the_lookup_is_not_loaded(
    project: str, folder: MakeFolder, change: dict[str, object], tmp_path: Path
) -> None:
    """The description is replaced for a moment, and restored before its owner is checked."""
    place = urls.join(exported(folder("a")).url, "model.json")
    own = for_url(place).read_bytes(place)
    content = {**json.loads(own), "artifacts": {"sklearn": "weights.bin"}}
    for_url(place).write_bytes(place, json.dumps({**content, **change}).encode())
    version = registry.find("digits")
    for_url(place).write_bytes(place, json.dumps(content).encode())
    with pytest.raises(ModelNotFound, match="was replaced after it was looked up"):
        version.local_files(private(tmp_path / "cache"))


def test_version_deleted_during_its_download_raises_model_not_found(
    project: str, folder: MakeFolder, tmp_path: Path
) -> None:
    version = exported(folder("a"))
    registry.delete("digits", 1)
    with pytest.raises(ModelNotFound, match="version 1 of the model 'digits' was deleted while it was fetched"):
        version.local_files(private(tmp_path / "cache"))


def test_cache_writable_by_others_is_refused(project: str, folder: MakeFolder, tmp_path: Path) -> None:
    version = exported(folder("a"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ArgumentError, match="other users can write to it"):
        version.local_files(tmp_path / "open")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
@pytest.mark.parametrize("folder_of", [definitions.local_servings_folder, None], ids=["servings", "models"])
def test_private_folder_behind_a_link_of_another_user_is_refused(
    project: str, folder: MakeFolder, folder_of: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the kernel follows the link (fs.protected_symlinks=0), its owner could change its target after the check."""
    link = tmp_path / "link"
    link.symlink_to(private(tmp_path / "own"))
    monkeypatch.setenv(definitions.VARIABLE, str(link))
    use = folder_of if callable(folder_of) else partial(exported(folder("a")).local_files, link)
    assert use()
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(ArgumentError, match="a symbolic link of user 65534"):
        use()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../.config/autostart"},
        {"folder": "../../../Experiments/theirs"},
        {"files": {"/etc/x": {"bytes": 1, "sha256": ""}}},
        {"artifacts": {"sklearn": "inner/../../model.pkl"}},
        {"artifacts": {"saved_model": "/tmp/model"}},
    ],
)
def test_paths_in_a_description_cannot_leave_its_folder(
    project: str, folder: MakeFolder, change: dict[str, object]
) -> None:
    place = urls.join(exported(folder("a")).url, "model.json")
    content = json.loads(for_url(place).read_bytes(place))
    for_url(place).write_bytes(place, json.dumps({**content, **change}).encode())
    with pytest.raises(StorageError, match=r"not valid for a model|leads out of the version's folder"):
        registry.find("digits")


def test_invalid_description_is_reported_with_its_path(project: str, folder: MakeFolder) -> None:
    version = exported(folder("a"))
    place = urls.join(version.url, "model.json")
    content = json.loads(for_url(place).read_bytes(place))
    for_url(place).write_bytes(place, json.dumps({**content, "format": 99}).encode())
    with pytest.raises(
        StorageError, match=r"Models/digits/1/model.json: a newer version of hopsml wrote it \(format 99"
    ):
        registry.find("digits")
    for_url(place).write_bytes(place, b"{}")
    with pytest.raises(StorageError, match=r"it is not a model\.json of hopsml"):
        registry.find("digits")


def test_model_files_are_found_locally_and_in_the_project(
    project: str, folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder("a")
    monkeypatch.chdir(made)
    assert list(exported(Path("weights.bin")).description.files) == ["weights.bin"]
    for_url(project).write_bytes(f"{project}/Resources/m/x.onnx", b"o")
    version = registry.export("Resources/m", "onnx")
    assert version is not None
    assert version.description.flavor == "onnx" and version.description.artifacts == {"onnx": "x.onnx"}
    with pytest.raises(PathNotFound, match=r"there is no .*/nowhere and no .*project/nowhere"):
        registry.export("nowhere", "digits")
    with pytest.raises(ArgumentError, match="takes exactly one model"):
        registry.export(made, "digits", model_path=made)
    with pytest.raises(ArgumentTypeError, match="a int is not a model; pass a Keras model"):
        registry.export(3, "digits")
    program = type("ExportedProgram", (), {"__module__": "torch.export.exported_program"})()
    with pytest.raises(ArgumentTypeError, match=r"is not a model; pass the torch.nn.Module from which it was made"):
        registry.export(program, "digits")


def test_model_exported_from_a_run_has_its_lineage(project: str, folder: MakeFolder) -> None:
    run = f"{project}/Experiments/app_1"
    system = for_url(run)
    system.write_bytes(f"{run}/export/model/weights.bin", b"w")
    system.write_bytes(f"{run}/inputs.jsonl", b'{"url": "file:///b", "bytes": 2}\n')
    around = {"code": {"git": {"commit": "abc", "dirty": True}}, "inputs": [{"url": "file:///a", "bytes": 1}]}
    system.write_bytes(f"{run}/environment.json", json.dumps(around).encode())
    version = registry.export(f"{run}/export/model", "digits")
    assert version is not None
    origin = version.description.lineage
    assert (origin.run_id, origin.run_url, origin.commit, origin.dirty) == ("app_1", run, "abc", True)
    assert [one["url"] for one in origin.data] == ["file:///a", "file:///b"]


def test_full_local_disk_is_distinguished_from_the_store(project: str, folder: MakeFolder, tmp_path: Path) -> None:
    version = exported(folder("one"))
    with small_disk.mounted(tmp_path / "small", 64) as disk:
        small_disk.fill(disk)
        with pytest.raises(QuotaExceeded, match=r"the full disk is that of .*small, where copies of models are stored"):
            version.local_files(disk)
        assert [one.name for one in disk.iterdir()] == ["filler"]


@pytest.mark.parametrize("artifact", ["saved_model", "keras", "sklearn", "torch_export", "torchscript", "onnx", "new"])
def test_model_of_another_user_is_not_loaded_in_any_form(
    project: str, folder: MakeFolder, artifact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = exported(folder("a"), "theirs")
    described = msgspec.structs.replace(theirs.description, artifacts={artifact: ""})
    monkeypatch.setattr(trust, "own_owner_names", lambda url: frozenset({"somebody"}))
    assert theirs.local_files().is_dir(), "plain files"
    with pytest.raises(ArgumentError, match="loading a model executes its content"):
        Version(theirs.url, described).local_files()


def test_corrupt_checkpoint_is_not_exported(project: str, folder: MakeFolder, tmp_path: Path) -> None:
    stored = checkpoints.commit(folder("a"), str(tmp_path / "run" / "checkpoints"), 120)
    Path(stored, "inner", "more.txt").write_text("b")
    for given in (stored, urls.parent(stored)):
        with pytest.raises(
            checkpoints.CorruptCheckpoint, match=r"step-000000120: inner/more.txt differs from the committed file"
        ):
            registry.export(given, "digits")
    with pytest.raises(ModelNotFound):
        registry.find("digits")
