"""Shipping of the Python environment with an application: none, an existing archive, or this one, cached by its hash.

    spark.yarn.dist.archives = hdfs://.../environments/<user>/<hash>.tar.gz#environment
    PYSPARK_PYTHON           = ./environment/bin/python

An environment is packed and uploaded once; later submissions of the same one only name it, and a node that has fetched
it does not fetch it again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopsml.core import settings
from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError, PathExists, PathNotFound, StorageError
from hopsml.storage import filesystem, trust, urls
from hopsml.submission import environment_archive
from hopsml.submission import script as scripts
from hopsml.submission.environment_archive import BY_SPARK, Environment, modules_in

NAME = "environment"
PYTHON = f"./{NAME}/bin/python"
_READABLE = {
    "file",
    "hdfs",
    "viewfs",
    "hopsfs",
    "s3",
    "s3a",
    "gs",
    "abfs",
    "abfss",
    "memory",
}  # no http, ftp and the like
MODES = ("never", "auto", "always")
_PYTHON_KEYS = ("spark.pyspark.python", "spark.yarn.appMasterEnv.PYSPARK_PYTHON", "spark.executorEnv.PYSPARK_PYTHON")


@dataclass(frozen=True)
class Shipment:
    """Environment that is shipped.

    ``url`` is "" for none; ``environment`` is None for an existing archive.
    """

    url: str = ""
    environment: Environment | None = None

    def settings(self, known: Mapping[str, str], deploy_mode: str) -> dict[str, str]:
        """Return the Spark settings that make executors use the shipped environment.

        They override those in ``known``.
        """
        if not self.url:
            return {}
        archives = [item for item in known.get("spark.yarn.dist.archives", "").split(",") if item]
        added = {
            "spark.yarn.dist.archives": ",".join([*archives, f"{self.url}#{NAME}"]),
            "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
        }
        if deploy_mode == "cluster":
            # Spark passes PYSPARK_DRIVER_PYTHON of this process's environment on, which would take precedence
            names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
            return added | {f"spark.yarn.appMasterEnv.{name}": PYTHON for name in names}
        return {**added, "spark.pyspark.python": PYTHON, "spark.pyspark.driver.python": sys.executable}


def plan_shipment(mode: str, profile: Profile) -> Shipment:
    """Return the environment to ship, without packing anything.

    Args:
        mode: never, auto (if the master is YARN), always, or the URL of an archive.
        profile: profile of the application.

    Raises:
        ArgumentError: for an unknown mode, a master other than YARN, or a store that nodes cannot read.
    """
    if "://" in mode or mode.startswith("local:"):
        _check_yarn(profile, mode)
        return Shipment(mode)
    if mode not in MODES:
        raise ArgumentError(
            f"ship_environment={mode!r}: the value must be {', '.join(MODES)}, or the URL of an archive"
        )
    if mode == "never" or (mode == "auto" and not profile.master.startswith("yarn")):
        return Shipment()
    _check_yarn(profile, mode)
    store = profile.store or settings.project_url()
    if urls.is_local(store):
        raise ArgumentError(
            f"the environment cannot be cached in {store}, since nodes cannot read this disk; set HOPSML_PROJECT_URL "
            "(or the store of the profile) to shared storage such as hdfs://..., or pass the URL of an archive to "
            "--ship-environment"
        )
    environment = Environment.current()
    # A cache per user: another user's archive would run with this user's rights.
    return Shipment(urls.join(store, "environments", settings.user_name(), f"{environment.hash}.tar.gz"), environment)


def ensure_uploaded(
    shipment: Shipment, notify: Callable[[str], None], check: Callable[[], None] = lambda: None
) -> None:
    """Pack and upload the environment unless it is stored already.

    Of concurrent submissions one succeeds, and all continue.

    Args:
        shipment: the environment that is shipped.
        notify: called with each line about the progress.
        check: called repeatedly during packing; what it raises aborts that.
    """
    environment = shipment.environment
    if environment is None or _is_there(shipment.url):
        return
    if not environment.includes_interpreter:
        notify(f"nodes must have {environment.base_executable}, since the system's Python is not part of the archive")
    with tempfile.TemporaryDirectory(prefix="hopsml-environment-") as folder:
        target = Path(folder, "environment.tar.gz")
        notify(f"packing {environment.prefix} ({len(environment.packages)} packages), once for this environment")
        began = time.monotonic()
        length = environment_archive.pack(environment, target, check)
        packed_s = time.monotonic() - began
        system = filesystem.for_url(shipment.url)
        system.write_bytes(manifest_url(shipment.url), json.dumps(_manifest(environment, length), indent=1).encode())
        try:
            system.upload(target, shipment.url, overwrite=False)
            trust.remove_write_access_of_others(shipment.url)
        except PathExists:
            _is_there(shipment.url)  # another submission of this user was faster, with the same content
        took_s = time.monotonic() - began
        notify(f"{shipment.url}: {length / 1e6:.0f} MB, packed in {packed_s:.0f} s, stored after {took_s:.0f} s")


def _is_there(url: str) -> bool:
    """Return True if the archive exists.

    Raises:
        ArgumentError: for one that another user may have stored under this name.
    """
    try:
        status = filesystem.for_url(url).status(url)
    except PathNotFound:
        return False
    trust.check_trusted(status, "every driver and executor would execute its content")
    return True


def check_imports(script: str, shipment: Shipment, known: Mapping[str, str], profile: Profile) -> None:
    """Raise ArgumentError if imports of the script will be missing.

    Nothing happens if that cannot be determined.
    """
    needed = scripts.imported_names(scripts.parse_script(script))
    own = scripts.py_file_modules(known.get("spark.submit.pyFiles", ""))
    is_present = _presence(shipment, known)
    if own is None or is_present is None:
        return
    if profile.deploy_mode != "cluster":
        # the driver runs here, and can import what is next to the script
        own |= set(modules_in(Path(script).resolve().parent))
    for key in ("spark.yarn.appMasterEnv.PYTHONPATH", "spark.executorEnv.PYTHONPATH"):
        for folder in filter(None, known.get(key, "").split(os.pathsep)):
            own |= set(modules_in(Path(folder)))
    lacking = [f"{name} (line {line})" for name, line in needed.items() if name not in own and not is_present(name)]
    if lacking:
        where = "environment archive" if shipment.url else f"environment of {sys.executable}"
        raise ArgumentError(
            f"{script}: the {where} lacks {', '.join(lacking)}; pip install packages, and ship your own modules with "
            "--py-files; nothing was submitted"
        )


def check_allowed(archive_url: str, stores: Sequence[str]) -> None:
    """Raise ArgumentError unless an archive is below one of these URLs: it is read with this process's rights."""
    scheme, authority, path = urls.split(archive_url)
    for store in stores:
        known_scheme, known_authority, known_path = urls.split(store)
        is_below = path.startswith(known_path.rstrip("/") + "/") and ".." not in path.split("/")
        if scheme and (scheme, authority) == (known_scheme, known_authority) and is_below:
            return
    raise ArgumentError(
        f"archive {archive_url}: environments are accepted only from {', '.join(stores) or 'no store'}; copy the "
        "archive there, or ask the administrator of the service to allow its store (`hopsml server --archives URL`)"
    )


def manifest_url(archive_url: str) -> str:
    """Return the URL of the record next to an archive that describes its content."""
    return archive_url.removesuffix(".tar.gz") + ".json"


def _presence(shipment: Shipment, known: Mapping[str, str]) -> Callable[[str], bool] | None:
    """Return a predicate that is True for modules importable where the application runs; None if that is unknown."""
    if shipment.environment is not None:
        return shipment.environment.modules.__contains__
    if shipment.url:
        if urls.split(shipment.url)[0] not in _READABLE:
            return None  # no request: the archive's URL could make this machine connect to any address
        try:
            content = json.loads(filesystem.read_record(manifest_url(shipment.url)))
            return frozenset(content["modules"]).__contains__
        except (StorageError, ArgumentError, ValueError, LookupError, TypeError, RecursionError):
            return None  # an archive from another source, without a list
    named = {known.get(key, sys.executable) for key in _PYTHON_KEYS} | {
        os.environ.get("PYSPARK_PYTHON", sys.executable)
    }
    return _is_here if named == {sys.executable} else None


def _is_here(name: str) -> bool:
    """Return True if this interpreter can import the module."""
    if name in BY_SPARK:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # __main__ has no spec
        return name in sys.modules


def _check_yarn(profile: Profile, mode: str) -> None:
    """Raise ArgumentError unless the profile's master is YARN."""
    if not profile.master.startswith("yarn"):
        raise ArgumentError(
            f"ship_environment={mode!r}: profile '{profile.name}' has master {profile.master}, but environments can "
            "be shipped to the nodes of YARN only; use auto or never"
        )


def _manifest(environment: Environment, length: int) -> dict[str, object]:
    """Return the record that describes an archive."""
    return {
        "packages": environment.packages,
        "modules": sorted(environment.modules),
        "python": sys.version.split()[0],
        "interpreter": "carried" if environment.includes_interpreter else str(environment.base_executable),
        "bytes": length,
        "made_by": settings.login_name(),
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
