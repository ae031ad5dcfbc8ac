"""Export of a model, or of files, as a new version in the registry."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import current
from hopsml.core import settings
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.model import description, lineage, registry, version_lock
from hopsml.model.description import Lineage, ModelDescription, ModelFile
from hopsml.model.flavors import contract, files
from hopsml.model.flavors.contract import SavedModel
from hopsml.model.version import Version, sha256
from hopsml.storage import checkpoints, run_dir, urls
from hopsml.storage.filesystem import exists, for_url
from hopsml.storage.run_dir import step_of
from hopsml.storage.tree import copy_tree, local_files

logger = logging.getLogger(__name__)


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
        raise ArgumentError("export() takes one model: the object, or the path of its files")
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
        registry.announce(made, project)
    return made


@dataclass(frozen=True)
class _Asked:
    """Validated arguments of an export."""

    url: str  # of the model's directory
    version: int | None
    overwrite: bool
    metrics: dict[str, float]
    description: str


_version, _metrics = description.checked_version, description.checked_metrics  # an argument shadows the module


def _export_object(model: Any, asked: _Asked, example: Any) -> Version | None:
    """Save a model in memory by its flavor, and register it."""
    flavor = contract.flavor_of(model)
    module, context = contract.named(flavor), current()
    with _temporary_folder() as folder:
        saved = module.save(model, folder, example)
        if not module.keeps():
            return None
        origin = lineage.of_driver() if context is None else lineage.of_worker(context)
        return _register(asked, flavor, folder, saved, origin)


def _export_files(given: str, asked: _Asked, project: str | None) -> Version | None:
    """Register existing files as a version."""
    context = current()
    if context is not None and not context.is_chief:
        return None
    source = _located(given, project)
    run = lineage.run_above(source)
    origin = lineage.of_worker(context) if context is not None else lineage.of_run(run) if run else lineage.of_driver()
    with _temporary_folder() as folder:
        is_dir = for_url(source).status(source).is_dir
        if is_dir and urls.is_local(source):
            target = Path(urls.split(source)[2])
        else:
            target = folder / "files"
            copy_tree(source, str(target) if is_dir else urls.join(str(target), urls.name(source)))
        _check_checkpoints(target, source)
        flavor, saved = files.detect_flavor(target)
        return _register(asked, flavor, target, saved, origin)


def _check_checkpoints(folder: Path, source: str) -> None:
    """Check the checksums of checkpoints among the files to export.

    Raises:
        CorruptCheckpoint: A checkpoint does not match its checksums.
    """
    for manifest in sorted(folder.rglob(checkpoints.MANIFEST)) if folder.is_dir() else []:
        root = manifest.parent
        name = urls.name(source) if root == folder else root.name
        if step_of(name) is not None:
            checkpoints.check(root, urls.join(source, *root.relative_to(folder).parts))


def _register(asked: _Asked, flavor: str, folder: Path, saved: SavedModel, origin: Lineage) -> Version:
    """Claim a number, upload the files and complete the version; file digests are computed before the claim."""
    found = {name: ModelFile((folder / name).stat().st_size, sha256(folder / name)) for name in local_files(folder)}
    if not found:
        raise ArgumentError("the model has no files: there is nothing to export")
    run_dir.make_project(urls.parent(urls.parent(asked.url)))
    claim = version_lock.claim(asked.url, asked.version, asked.overwrite)
    try:
        claim.fill(folder)
        return claim.complete(
            ModelDescription(
                name=urls.name(asked.url),
                version=claim.version,
                flavor=flavor,
                created=datetime.now(timezone.utc),
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
        claim.give_up()
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
    """Return the URL of a path: local, on the remote file system, or relative to the project.

    Raises:
        PathNotFound: The path does not exist in any of these places; the message lists them.
    """
    remote = urls.remote_of(given)
    if urls.split(given)[0]:
        places = [given]
    else:
        root = settings.project_url(project)
        in_project = urls.join(root, given) if not given.startswith("/") else urls.base(root) + given
        places = [os.path.abspath(given), *([remote] if remote else []), in_project]
    for place in dict.fromkeys(places):
        if exists(place):
            return place
    raise PathNotFound(f"cannot export {given}: there is no {' and no '.join(dict.fromkeys(places))}", given)
