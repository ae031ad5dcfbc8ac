"""One complete version of a model, and its files on this machine."""

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

from hopsml.errors import ArgumentError, ModelNotFound, PathNotFound, QuotaExceeded, StorageError
from hopsml.model.description import MODEL_JSON, ModelDescription
from hopsml.storage import causes, privacy, trust, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.tree import download_tree

CACHE = "HOPSML_MODEL_CACHE"
_CHUNK = 1 << 20
_NAME_IN_CACHE = 100  # of the characters of a name, which may fill a folder's name alone; the digest tells them apart
_ABANDONED_S = 86_400.0  # a copy that nobody has finished for so long nobody will


class DamagedModel(StorageError):
    """A file of a version does not hold what was exported."""


class Version(Mapping[str, Any]):
    """A version as it was when it was looked up.

    It reads as a dict of what ``model.json`` holds, too: ``version["metrics"]["accuracy"]``.
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
        """The model's name."""
        return self.description.name

    @property
    def version(self) -> int:
        """The version's number, from 1."""
        return self.description.version

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics that were given when it was exported."""
        return self.description.metrics

    training_metrics = metrics  # under the name that Hopsworks' client has for it

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
        """A local folder that holds the version's files, fetched once and checked against their digests.

        ``cache_folder``: where copies are kept, by content; it must be this user's alone. By default ``HOPSML_MODEL_CACHE``,
        else a folder of this user's among the temporary ones. Several processes may fetch at once. ``trusted``: users whose
        models are believed besides those of ``HOPSML_TRUSTED_OWNERS``, as the one who asked has it where he is.

        Raises:
            ModelNotFound: (LookupError) the version has been deleted meanwhile.
            DamagedModel: (StorageError) a file is not what was exported.
            ArgumentError: it belongs to somebody who is not trusted, and can be loaded as a model of any kind.
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
            if target.exists() and not _has_all(target, self.description):  # somebody has cleaned up there
                shutil.rmtree(target, ignore_errors=True)
            fresh.rename(target)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if isinstance(error, QuotaExceeded):  # its text names the file that was read
                said = f"{error}; the full disk is that of {cache}, where copies are kept (HOPSML_MODEL_CACHE)"
                raise QuotaExceeded(said, str(cache)) from error
            if isinstance(error, StorageError):
                raise
            if not _has_all(target, self.description):  # else another process was first
                raise causes.from_os_error("write", str(target), error) from error
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return target

    def _fetch(self, fresh: Path) -> None:
        fresh.mkdir()  # a model may be without files
        try:
            download_tree(self.files_url, fresh)
        except PathNotFound as error:
            raise ModelNotFound(
                f"version {self.version} of the model '{self.name}' was deleted while it was fetched from {self.url}"
            ) from error
        for name, known in self.description.files.items():
            path = fresh / name
            if not path.is_file() or path.stat().st_size != known.bytes or sha256(path) != known.sha256:
                raise DamagedModel(
                    f"{urls.join(self.files_url, name)} is not what was exported ({known.bytes} bytes, sha256 "
                    f"{known.sha256[:12]}); export the model again, or take another version",
                    self.files_url,
                )

    def check_owner(self, trusted: Collection[str] = frozenset()) -> None:
        """Raise ArgumentError if a version that can be loaded belongs to a user who is not trusted.

        Loading runs its author's code, whatever its kind: a pickle runs code, the graph of a SavedModel reads and writes
        files, a Keras model has layers with any code, an ONNX graph names further files. Plain files are not checked: they
        run nothing when they are fetched.
        """
        if not self.description.artifacts:
            return
        for place in (self.url, urls.join(self.url, MODEL_JSON)):
            believed = trust.own_names(place) | trust.trusted() | frozenset(trusted)
            trust.check(for_url(place).status(place), "to load a model is to run what is in it", believed)


def _sweep(cache: Path) -> None:
    """Remove copies that were begun by processes that are dead."""
    for left in cache.glob(".tmp-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(left, ignore_errors=True)


def sha256(path: Path) -> str:
    """SHA-256 of a local file, in hexadecimal digits."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK):
            total.update(piece)
    return total.hexdigest()


def _has_all(folder: Path, description: ModelDescription) -> bool:
    """A copy appears whole, so lengths tell whether it is still so."""
    try:
        return folder.is_dir() and all(
            (folder / name).stat().st_size == file.bytes for name, file in description.files.items()
        )
    except FileNotFoundError:
        return False


def _default_cache() -> Path:
    return Path(os.environ.get(CACHE) or Path(tempfile.gettempdir(), f"hopsml-models-{os.geteuid()}"))


def _private(folder: Path) -> Path:
    """The folder, made where it is missing; ArgumentError where somebody else could change what is in it."""
    try:
        privacy.make_own_folder(folder)
    except PermissionError as error:
        raise ArgumentError(
            f"cache_folder={str(folder)!r}: others than this user may write there, and models are loaded from it ({error}); "
            "name a folder of this user's alone (chmod go-w)"
        ) from error
    return folder
