"""Complete version of a model, and the local copy of its files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, ModelNotFound, PathNotFound, QuotaExceeded, StorageError
from hopsml.model.description import MODEL_JSON, ModelDescription, decode
from hopsml.storage import causes, privacy, trust, urls
from hopsml.storage.filesystem import exists, for_url
from hopsml.storage.tree import download_tree

CACHE = "HOPSML_MODEL_CACHE"
_CHUNK = 1 << 20
_NAME_IN_CACHE = 100  # length of the name in a folder's name, which is limited; the digest makes it unique
_ABANDONED_S = 86_400.0  # age at which an incomplete copy counts as abandoned


class DamagedModel(StorageError):
    """Error for a file of a version whose content differs from what was exported."""


class Version(Mapping[str, Any]):
    """Version of a model at the time of its lookup.

    It can also be read as a dict with the content of ``model.json``: ``version["metrics"]["accuracy"]``.

    Attributes:
        url: URL of the version's directory.
        description: Description of the version.
    """

    def __init__(self, url: str, description: ModelDescription) -> None:
        self.url = url  # of the version's directory
        self.description = description
        self._plain: dict[str, Any] = {**msgspec.to_builtins(description), "url": url}

    def __repr__(self) -> str:
        return f"Version({self.name!r}, {self.version}, {self.url!r})"

    def __getitem__(self, key: str) -> Any:
        return self._plain[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plain)

    def __len__(self) -> int:
        return len(self._plain)

    def __hash__(self) -> int:
        return hash((self.url, self.description.digest))

    @property
    def name(self) -> str:
        """Name of the version's model."""
        return self.description.name

    @property
    def version(self) -> int:
        """Version number, counted from 1."""
        return self.description.version

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that were given at the export."""
        return self.description.metrics

    training_metrics = metrics  # name in the client of Hopsworks

    @property
    def version_path(self) -> str:
        """URL of the version's directory."""
        return self.url

    @property
    def model_path(self) -> str:
        """URL of the directory that holds all versions of the model."""
        return urls.parent(self.url)

    @property
    def files_url(self) -> str:
        """URL of the directory with the model's files."""
        return urls.join(self.url, self.description.folder)

    def local_files(
        self, cache_folder: str | os.PathLike[str] | None = None, trusted: Collection[str] = frozenset()
    ) -> Path:
        """Return a local folder with the version's files, which are downloaded once and checked against their digests.

        Several processes may call this at the same time.

        Args:
            cache_folder: Folder for copies, by content; only this user may have write access to it. By default
                ``HOPSML_MODEL_CACHE``, else a folder of this user below the temporary folder.
            trusted: Users whose models are trusted in addition to those of ``HOPSML_TRUSTED_OWNERS``, such as those
                that the requesting process trusts.

        Raises:
            ModelNotFound: (LookupError) The version has been deleted since its lookup.
            DamagedModel: (StorageError) A file differs from what was exported.
            ArgumentError: The version can be loaded as a model, and belongs to a user who is not trusted; or others may
                write to the cache folder.
        """
        self.check_owner(trusted)
        cache = _private(Path(cache_folder) if cache_folder is not None else _default_cache())
        target = cache / f"{self.name[:_NAME_IN_CACHE]}-{self.version}-{self.description.digest[:20]}"
        if _has_all(target, self.description):
            return target
        _sweep(cache)
        fresh = Path(urls.temporary_sibling(str(target)))
        try:
            self._fetch(fresh)
            if target.exists() and not _has_all(target, self.description):  # the existing copy is incomplete
                shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if isinstance(error, QuotaExceeded):  # its text names the file that was read
                said = (
                    f"{error}; the full disk is that of {cache}, where copies of models are stored (HOPSML_MODEL_CACHE)"
                )
                raise QuotaExceeded(said, str(cache)) from error
            if isinstance(error, StorageError):
                raise
            if not _has_all(target, self.description):  # otherwise another process has completed the copy
                raise causes.from_os_error("write", str(target), error) from error
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return target

    def _fetch(self, fresh: Path) -> None:
        """Download the files that were exported, and check their digests."""
        fresh.mkdir()  # a model may have no files
        try:
            download_tree(self.files_url, fresh, keep=self.description.files)
        except PathNotFound as error:
            raise self._deleted() from error
        if not exists(urls.join(self.url, MODEL_JSON)):  # the directory remains, with the version's number
            raise self._deleted()
        for name, known in self.description.files.items():
            path = fresh / name
            if not path.is_file() or path.stat().st_size != known.bytes or sha256(path) != known.sha256:
                raise DamagedModel(
                    f"{urls.join(self.files_url, name)} differs from the exported file ({known.bytes} bytes, sha256 "
                    f"{known.sha256[:12]}); export the model again, or use another version",
                    self.files_url,
                )

    def _deleted(self) -> ModelNotFound:
        """Return the error for a version that was deleted since its lookup."""
        return ModelNotFound(
            f"version {self.version} of the model '{self.name}' was deleted while it was fetched from {self.url}"
        )

    def check_owner(self, trusted: Collection[str] = frozenset()) -> None:
        """Check that a version that can be loaded belongs to a trusted user.

        Loading runs code of the model's author, whatever its kind: a pickle runs code, the graph of a SavedModel reads
        and writes files, a Keras model has layers with any code, an ONNX graph names further files. Plain files are not
        checked: downloading them runs no code.

        Args:
            trusted: Users that are trusted in addition to those of ``HOPSML_TRUSTED_OWNERS``.

        Raises:
            ArgumentError: The owner is not trusted.
            ModelNotFound: The description is not the one that was looked up, which may have been another user's.
        """
        if not self.description.artifacts:
            return
        place, what = urls.join(self.url, MODEL_JSON), "loading a model executes its content"
        believed = trust.own_owner_names(place) | trust.trusted_owners() | frozenset(trusted)
        trust.check_trusted(for_url(self.url).status(self.url), what, believed)
        data, _ = trust.read_bytes(place, what, owners=believed)
        if _loaded_parts(decode(data, place)) != _loaded_parts(self.description):
            raise ModelNotFound(
                f"version {self.version} of the model '{self.name}' was replaced after it was looked up in {self.url}; "
                "look it up again"
            )


def _loaded_parts(description: ModelDescription) -> tuple[object, ...]:
    """Return what decides which files are loaded, and how."""
    return description.flavor, description.folder, description.artifacts, description.digest


def _sweep(cache: Path) -> None:
    """Delete copies that ended processes left incomplete."""
    for left in cache.glob(".tmp-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a local file, in hexadecimal digits."""
    total = hashlib.sha256()
    with open(path, "rb", opener=trust.opener) as file:
        while piece := file.read(_CHUNK):
            total.update(piece)
    return total.hexdigest()


def _has_all(folder: Path, description: ModelDescription) -> bool:
    """Return True if a copy is complete; copies appear atomically, so that the lengths of files suffice."""
    try:
        return folder.is_dir() and all(
            (folder / name).stat().st_size == file.bytes for name, file in description.files.items()
        )
    except FileNotFoundError:
        return False


def _default_cache() -> Path:
    """Return the default folder for copies."""
    return Path(SETTINGS.model_cache or Path(tempfile.gettempdir(), f"hopsml-models-{os.geteuid()}"))


def _private(folder: Path) -> Path:
    """Return the folder, which is created if necessary."""
    try:
        privacy.ensure_private_folder(folder)
    except PermissionError as error:
        raise ArgumentError(
            f"cache_folder={str(folder)!r}: models are loaded from this folder, but other users can write to it "
            f"({error}); use a folder that only this user can write (chmod go-w)"
        ) from error
    return folder
