"""The environment that travels with an application: none, one that lies somewhere, or this one, cached by its hash.

    spark.yarn.dist.archives = hdfs://.../environments/<user>/<hash>.tar.gz#environment
    PYSPARK_PYTHON           = ./environment/bin/python

Packed and uploaded once; every later submission of the same environment only names it, and a node that has had it does not
fetch it again.
"""

from __future__ import annotations

import getpass
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopsml import settings
from hopsml.errors import ArgumentError, PathExists, PathNotFound, StorageError
from hopsml.profiles import Profile
from hopsml.storage import filesystem, trust, urls
from hopsml.submission import archive
from hopsml.submission import script as scripts
from hopsml.submission.packages import BY_SPARK, Environment, modules_in

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
    """What travels. ``url`` is empty for nothing, ``environment`` None for an archive that somebody else has made."""

    url: str = ""
    environment: Environment | None = None

    def settings(self, known: Mapping[str, str], deploy_mode: str) -> dict[str, str]:
        """Spark's settings that make executors use the shipped environment, besides and instead of ``known``."""
        if not self.url:
            return {}
        archives = [item for item in known.get("spark.yarn.dist.archives", "").split(",") if item]
        added = {
            "spark.yarn.dist.archives": ",".join([*archives, f"{self.url}#{NAME}"]),
            "spark.executorEnv.PYSPARK_PYTHON": PYTHON,
        }
        if deploy_mode == "cluster":
            # Spark hands a PYSPARK_DRIVER_PYTHON of this process's environment on, and it would win
            names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
            return added | {f"spark.yarn.appMasterEnv.{name}": PYTHON for name in names}
        return {**added, "spark.pyspark.python": PYTHON, "spark.pyspark.driver.python": sys.executable}


def plan(mode: str, profile: Profile) -> Shipment:
    """What is to travel; nothing is packed or looked for. ``mode``: never, auto (where YARN is), always, or a URL."""
    if "://" in mode or mode.startswith("local:"):
        _check_yarn(profile, mode)
        return Shipment(mode)
    if mode not in MODES:
        raise ArgumentError(f"ship_environment={mode!r}: it must be {', '.join(MODES)}, or the URL of an archive")
    if mode == "never" or (mode == "auto" and not profile.master.startswith("yarn")):
        return Shipment()
    _check_yarn(profile, mode)
    store = profile.store or settings.project_url()
    if urls.is_local(store):
        raise ArgumentError(
            f"the environment cannot be cached in {store}: nodes do not see this disk; let HOPSML_PROJECT_URL (or the "
            "profile's store) name shared storage such as hdfs://..., or --ship-environment an archive that is there"
        )
    environment = Environment.current()
    # Each user has a cache: an archive of another one's would be run as this one.
    return Shipment(urls.join(store, "environments", settings.user_name(), f"{environment.hash}.tar.gz"), environment)


def ensure(shipment: Shipment, notify: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
    """Pack and upload what is not there yet. Of several that do so at once one succeeds, and all go on.

    ``check`` is called again and again while it packs; what it raises stops that.
    """
    environment = shipment.environment
    if environment is None or _is_there(shipment.url):
        return
    if not environment.carries_interpreter:
        notify(f"nodes must have {environment.base_executable}: the system's Python is not part of the archive")
    with tempfile.TemporaryDirectory(prefix="hopsml-environment-") as folder:
        target = Path(folder, "environment.tar.gz")
        notify(f"packing {environment.prefix} ({len(environment.packages)} packages), once for this environment")
        began = time.monotonic()
        length = archive.pack(environment, target, check)
        packed_s = time.monotonic() - began
        system = filesystem.for_url(shipment.url)
        system.write_bytes(manifest_url(shipment.url), json.dumps(_manifest(environment, length), indent=1).encode())
        try:
            system.upload(target, shipment.url, overwrite=False)
            trust.narrow(shipment.url)
        except PathExists:
            _is_there(shipment.url)  # another submitter of this user's was quicker, with the same
        took_s = time.monotonic() - began
        notify(f"{shipment.url}: {length / 1e6:.0f} MB, packed in {packed_s:.0f} s, there after {took_s:.0f} s")


def _is_there(url: str) -> bool:
    """Whether the archive is there; ArgumentError for one that somebody else may have put there under this name."""
    try:
        status = filesystem.for_url(url).status(url)
    except PathNotFound:
        return False
    trust.check(status, "every driver and executor would run what is in it")
    return True


def check_imports(script: str, shipment: Shipment, known: Mapping[str, str], profile: Profile) -> None:
    """ArgumentError that names what the script imports and will not find; nothing is said where that cannot be known."""
    needed = scripts.imports(scripts.read(script))
    own = scripts.modules_of_files(known.get("spark.submit.pyFiles", ""))
    is_present = _presence(shipment, known)
    if own is None or is_present is None:
        return
    if profile.deploy_mode != "cluster":
        own |= set(modules_in(Path(script).resolve().parent))  # the driver is here, and sees what lies beside it
    for key in ("spark.yarn.appMasterEnv.PYTHONPATH", "spark.executorEnv.PYTHONPATH"):
        for folder in filter(None, known.get(key, "").split(os.pathsep)):
            own |= set(modules_in(Path(folder)))
    lacking = [f"{name} (line {line})" for name, line in needed.items() if name not in own and not is_present(name)]
    if lacking:
        where = "environment archive" if shipment.url else f"environment of {sys.executable}"
        raise ArgumentError(
            f"{script}: the {where} misses: {', '.join(lacking)}; pip install what is a package, ship a module of your own "
            "with --py-files; nothing was submitted"
        )


def check_allowed(archive_url: str, stores: Sequence[str]) -> None:
    """Raise ArgumentError for an archive that lies below none of these URLs: it is read with this process's rights."""
    scheme, authority, path = urls.split(archive_url)
    for store in stores:
        known_scheme, known_authority, known_path = urls.split(store)
        is_below = path.startswith(known_path.rstrip("/") + "/") and ".." not in path.split("/")
        if scheme and (scheme, authority) == (known_scheme, known_authority) and is_below:
            return
    raise ArgumentError(
        f"archive {archive_url}: environments are taken from {', '.join(stores) or 'no store at all'}: copy it there, or "
        "let whoever runs the service name its store (`hopsml server --archives URL`)"
    )


def manifest_url(archive_url: str) -> str:
    """URL of the record beside an archive that says what is in it."""
    return archive_url.removesuffix(".tar.gz") + ".json"


def _presence(shipment: Shipment, known: Mapping[str, str]) -> Callable[[str], bool] | None:
    """Whether a module can be imported where the application runs; None where that is not known."""
    if shipment.environment is not None:
        return shipment.environment.modules.__contains__
    if shipment.url:
        if urls.split(shipment.url)[0] not in _READABLE:
            return None  # no request: the archive's URL could make this machine connect to any address
        try:
            content = json.loads(filesystem.read_record(manifest_url(shipment.url)))
            return frozenset(content["modules"]).__contains__
        except (StorageError, ArgumentError, ValueError, LookupError, TypeError, RecursionError):
            return None  # somebody else's archive, without a list
    named = {known.get(key, sys.executable) for key in _PYTHON_KEYS} | {
        os.environ.get("PYSPARK_PYTHON", sys.executable)
    }
    return _is_here if named == {sys.executable} else None


def _is_here(name: str) -> bool:
    if name in BY_SPARK:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # __main__ has no spec
        return name in sys.modules


def _check_yarn(profile: Profile, mode: str) -> None:
    if not profile.master.startswith("yarn"):
        raise ArgumentError(
            f"ship_environment={mode!r}: profile '{profile.name}' has master {profile.master}, and only YARN carries an "
            "environment to the nodes; take auto or never"
        )


def _manifest(environment: Environment, length: int) -> dict[str, object]:
    return {
        "packages": environment.packages,
        "modules": sorted(environment.modules),
        "python": sys.version.split()[0],
        "interpreter": "carried" if environment.carries_interpreter else str(environment.base_executable),
        "bytes": length,
        "made_by": getpass.getuser(),
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
