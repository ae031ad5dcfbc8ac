"""Export of a model, or of files, as a new version in the registry, with its lineage as far as it is recorded."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, current
from hopsml.core import settings
from hopsml.core.newer_python import UTC
from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.model import description, directory, registry
from hopsml.model.description import Lineage, ModelDescription, ModelFile
from hopsml.model.flavors import contract, onnx
from hopsml.model.flavors.contract import SavedModel
from hopsml.model.version import Version, sha256
from hopsml.storage import checkpoints, run_dir, urls
from hopsml.storage.filesystem import exists, for_url
from hopsml.storage.run_dir import EXPERIMENTS, RunDir, parse_json_lines, parse_step_name
from hopsml.storage.tree import copy_tree, local_files
from hopsml.tracking import inputs, provenance

_BY_SUFFIX = {".keras": ("keras", "keras"), ".onnx": ("onnx", "onnx"), ".pt2": ("torch", "torch_export")}
logger = logging.getLogger(__name__)
_version, _metrics = description.checked_version, description.checked_metrics  # an argument shadows the module


def detect_flavor(folder: Path) -> tuple[str, SavedModel]:
    """Return the flavor of a folder's files, ``files`` if it is unknown, and what can be loaded from it."""
    for place in (folder, folder / "saved_model"):
        if (place / "saved_model.pb").is_file():
            return "tensorflow", SavedModel({"saved_model": "" if place == folder else "saved_model"})
    found = [path.name for path in folder.iterdir() if path.suffix in _BY_SUFFIX]
    if len(found) == 1:
        flavor, artifact = _BY_SUFFIX[Path(found[0]).suffix]
        return flavor, SavedModel(
            {artifact: found[0]}, onnx.signature_of(folder / found[0]) if flavor == "onnx" else None
        )
    return "files", SavedModel({})


def lineage_of_run(run_url: str, noted: list[dict[str, Any]] | None = None) -> Lineage:
    """Return the lineage from the record of a run.

    Args:
        run_url: URL of the run directory.
        noted: Inputs that the training function recorded and that may not be on the store yet; None to read them from
            the store.
    """
    run = RunDir(run_url)
    around = _record(run, run.environment_json)
    repository = (around.get("code") or {}).get("git") or {}
    data = [*(around.get("inputs") or []), *(run.read_json_lines(run.inputs) if noted is None else noted)]
    return Lineage(run.run_id, run_url, str(repository.get("commit", "")), repository.get("dirty"), _unique(data))


def lineage_of_worker(context: WorkerContext) -> Lineage:
    """Return the lineage in a worker: the run's record so far, with the inputs recorded in this process."""
    try:
        text = (context.events_dir.parent / "inputs.jsonl").read_text(encoding="utf-8")
    except OSError:
        text = ""
    return lineage_of_run(context.run_url, parse_json_lines(text))


def lineage_of_driver() -> Lineage:
    """Return the lineage outside a run: the code of this process, and the inputs that it recorded."""
    script = provenance.script_path()
    repository, _ = provenance.git_state(script.parent if script is not None else Path.cwd())
    return Lineage(
        "", "", str(repository.get("commit", "")), repository.get("dirty"), _unique(inputs.recorded_inputs())
    )


def enclosing_run_url(url: str) -> str:
    """Return the URL of the run directory that contains a file; "" if none does."""
    while (above := urls.parent(url)) != url and above not in ("", "."):
        if urls.name(above) == EXPERIMENTS:
            return url
        url = above
    return ""


def _record(run: RunDir, url: str) -> dict[str, Any]:
    """Return the content of a run's JSON file; empty if it cannot be read."""
    try:
        return run.read_json(url)
    except (PathNotFound, StorageError):  # it is written during the run; a missing lineage must not prevent the export
        return {}


def _unique(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each input once, as last recorded, as plain JSON."""
    found = {str(one.get("url", "")): one for one in data}
    return [json.loads(json.dumps(one, default=str)) for one in found.values()]


def export(
    model: Any = None,
    model_name: str = "",
    model_version: int | None = None,
    overwrite: bool = False,
    metrics: Mapping[str, float] | None = None,
    description: str | None = None,
    synchronous: bool = True,
    synchronous_timeout: float = 120,
    project: str | None = None,
    *,
    example: Any = None,
    model_path: str | os.PathLike[str] | None = None,
) -> Version | None:
    """Export a model in memory, or files, as a version of the model ``model_name``.

    In a training function all ranks must call it, since some frameworks read variables collectively. Only the chief's
    files are stored; the other ranks get None. The lineage of the version is the run, with the commit of its code and
    the recorded inputs.

    Args:
        model: A Keras model, a tf.Module, a torch.nn.Module, an estimator of scikit-learn, an ``onnx.ModelProto`` (see
            ``to_onnx``); or the path or URL of files, local or relative to the project.
        model_name: Letters, digits, ``_``, ``-`` and ``.``.
        model_version: Version number; by default the next free one.
        overwrite: True to replace the version of that number.
        metrics: Name -> finite number, by which versions are compared.
        description: Text about the version.
        synchronous: Accepted for compatibility with the predecessor; has no effect, because the version is complete
            when this function returns.
        synchronous_timeout: Accepted for compatibility with the predecessor; has no effect.
        project: Name of another project.
        example: Inputs from which the signature is derived, if the model does not define it: an array, or a dict of
            arrays, with the batch first. For an estimator of scikit-learn also a DataFrame; if its columns are not all
            numeric, each one is a separate input.
        model_path: The predecessor's name of ``model``.

    Returns:
        The complete version; None on ranks other than the chief.

    Raises:
        ArgumentError: (ValueError) A name, number or metric is invalid, or the model cannot be saved.
        ModelExists: (ValueError) The version exists.
        PathNotFound: (FileNotFoundError) The path does not exist.
        StorageError: (OSError) The store rejects the files.
    """
    if (model is None) == (model_path is None):
        raise ArgumentError("export() takes exactly one model: the object, or the path of its files")
    source = model_path if model is None else model
    checked = _Asked(
        registry.model_url(model_name, project),
        None if model_version is None else _version(model_version),
        overwrite,
        _metrics(metrics),
        str(description or ""),
    )
    if isinstance(source, (str, os.PathLike)):
        made = _export_files(os.fspath(source), checked, project)
    else:
        made = _export_object(source, checked, example)
    if made is not None:
        registry.publish_if_configured(made, project)
    return made


@dataclass(frozen=True)
class _Asked:
    """Validated arguments of an export."""

    url: str  # of the model's directory
    version: int | None
    overwrite: bool
    metrics: dict[str, float]
    description: str


def _export_object(model: Any, asked: _Asked, example: Any) -> Version | None:
    """Save a model in memory by its flavor, and register it."""
    flavor = contract.flavor_of(model)
    module, context = contract.flavor_module(flavor), current()
    with _temporary_folder() as folder:
        saved = module.save(model, folder, example)
        if not module.keeps():
            return None
        origin = lineage_of_driver() if context is None else lineage_of_worker(context)
        return _register(asked, flavor, folder, saved, origin)


def _export_files(given: str, asked: _Asked, project: str | None) -> Version | None:
    """Register existing files as a version."""
    context = current()
    if context is not None and not context.is_chief:
        return None
    source = _located(given, project)
    run = enclosing_run_url(source)
    origin = lineage_of_worker(context) if context is not None else lineage_of_run(run) if run else lineage_of_driver()
    with _temporary_folder() as folder:
        is_dir = for_url(source).status(source).is_dir
        if is_dir and urls.is_local(source):
            target = Path(urls.split(source)[2])
        else:
            target = folder / "files"
            copy_tree(source, str(target) if is_dir else urls.join(str(target), urls.name(source)))
        _check_checkpoints(target, source)
        flavor, saved = detect_flavor(target)
        return _register(asked, flavor, target, saved, origin)


def _check_checkpoints(folder: Path, source: str) -> None:
    """Check the checksums of checkpoints among the files to export."""
    for manifest in sorted(folder.rglob(checkpoints.MANIFEST)) if folder.is_dir() else []:
        root = manifest.parent
        name = urls.name(source) if root == folder else root.name
        if parse_step_name(name) is not None:
            checkpoints.verify_checksums(root, urls.join(source, *root.relative_to(folder).parts))


def _register(asked: _Asked, flavor: str, folder: Path, saved: SavedModel, origin: Lineage) -> Version:
    """Acquire a number, upload the files and complete the version; file digests are computed before the lock."""
    found = {name: ModelFile((folder / name).stat().st_size, sha256(folder / name)) for name in local_files(folder)}
    if not found:
        raise ArgumentError("the model has no files: there is nothing to export")
    run_dir.ensure_project_folder(urls.parent(urls.parent(asked.url)))
    lock = directory.acquire_version(asked.url, asked.version, asked.overwrite)
    try:
        lock = lock.fill(folder)
        return lock.complete(
            ModelDescription(
                name=urls.name(asked.url),
                version=lock.version,
                flavor=flavor,
                created=datetime.now(UTC),
                artifacts=saved.artifacts,
                signature=saved.signature,
                metrics=asked.metrics,
                description=asked.description,
                creator=settings.user_name(),
                lineage=origin,
                requirements=saved.requirements,
                files=found,
                bytes=sum(file.bytes for file in found.values()),
            )
        )
    except BaseException:
        lock.give_up()
        raise


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Provide an empty private folder that is deleted afterwards; in a worker it is below the work directory."""
    context = current()
    parent = context.work_dir if context is not None and context.work_dir.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="hopsml-unused-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _located(given: str, project: str | None) -> str:
    """Return the URL of a path: local, on the remote file system, or relative to the project."""
    remote = urls.mirrored_url(given)
    if urls.split(given)[0]:
        places = [given]
    else:
        root = settings.project_url(project)
        in_project = urls.join(root, given) if not given.startswith("/") else urls.scheme_and_authority(root) + given
        places = [os.path.abspath(given), *([remote] if remote else []), in_project]
    for place in dict.fromkeys(places):
        if exists(place):
            return place
    raise PathNotFound(f"cannot export {given}: there is no {' and no '.join(dict.fromkeys(places))}", given)
