"""Profiles, YAML files in ``conf/`` that describe where jobs run, so that a script needs only a name.

    extends: yarn                        # another profile, whose values apply where this one has none
    master: local-cluster[2,2,1024]      # or "none": agents are subprocesses, without Spark
    deploy_mode: client                  # client | cluster; passed to spark-submit
    store: ""                            # project URL; empty: HDFS if configured, else ./.hopsml
    spark: {spark.executor.memory: 1g}   # Spark's settings, unchanged; {conf} is the folder of this file
    environment: {}                      # variables for the driver
    class_data: false                    # whether JVMs start from class-data archives, where `hopsml class-data` made
    them
    ship_environment: never              # never | auto | always | URL of an archive: packages that travel to YARN's
    nodes

Arguments override the environment (HOPSML_...), which overrides the profile. Files are searched in $HOPSML_CONF_DIR,
else in ./conf and among those that are part of hopsml: the repository's conf/, which an installed package contains as
hopsml/conf.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopsml import class_data
from hopsml.core import ownership, suggestions
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError

_KEYS = (
    "extends", "master", "deploy_mode", "store", "spark", "environment", "local_slots", "class_data", "ship_environment",
    "description",
)  # fmt: skip

TYPING_ERROR = 0.9  # least similarity of two names for a typing error, see suggestions.py


@dataclass(frozen=True)
class Profile:
    """Description of where and how jobs run, from one file of ``conf/``.

    ``spark`` contains Spark settings; ``store`` is the URL of projects, or empty.
    """

    name: str
    master: str
    deploy_mode: str = "client"
    store: str = ""
    spark: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    local_slots: int | None = None
    class_data: bool = False
    ship_environment: str = "never"
    description: str = ""

    @property
    def uses_spark(self) -> bool:
        """True if agents run as Spark tasks, not as processes of this machine."""
        return self.master != "none"

    @property
    def can_grow(self) -> bool:
        """True if an application may gain and release slots while it runs."""
        return not self.uses_spark or self.spark.get("spark.dynamicAllocation.enabled") == "true"

    def settings(self) -> dict[str, str]:
        """Return the Spark settings, with this machine's class-data archives if the profile uses them.

        Archives that do not exist are left out.
        """
        return class_data.with_archives(self.spark) if self.class_data else dict(self.spark)


def folders() -> list[Path]:
    """Return the folders that are searched for profiles, in order.

    Raises ArgumentError if the working directory is gone.
    """
    named = SETTINGS.conf_dir
    if named:
        return [Path(named)]
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise ArgumentError(
            "the working directory has been deleted; change to an existing one (cd, os.chdir)"
        ) from None
    return [here / "conf", own_folder(Path(__file__).resolve().parents[1])]


def own_folder(package: Path) -> Path:
    """Return the folder of the profiles that are part of hopsml.

    Args:
        package: folder of hopsml's modules. Installed, it contains conf/; in a repository conf/ is next to it. A folder
            conf/ next to an installed package belongs to other software and is not used.
    """
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def names() -> list[str]:
    """Return the names of all profiles in ``folders()``, sorted."""
    return sorted({path.stem for folder in folders() for path in folder.glob("*.yaml")})


def load(name: str | None = None) -> Profile:
    """Return the profile of this name, else that of $HOPSML_PROFILE, else "local".

    Raises:
        ArgumentError: there is no such profile, or it is invalid.
    """
    wanted = name or SETTINGS.profile or "local"
    for folder in folders():
        path = folder / f"{wanted}.yaml"
        if path.is_file():
            _check_owner(path)
            profile = parse(wanted, path.read_text(encoding="utf-8"), str(path))
            return _with_environment(profile)
    raise _unknown(wanted, suggestions.similar_names(wanted, names()))


def _check_owner(path: Path) -> None:
    """Raise ArgumentError for a profile in the working directory that another user can have put there."""
    if SETTINGS.conf_dir or path.parent != Path.cwd() / "conf":
        return
    for part in (path.parent, path):
        if reason := ownership.why_foreign(part, Path.cwd()):
            raise ArgumentError(
                f"the profile {path} is not used, since {reason}, and a profile decides which programs run; use another "
                f"working directory, or name the folder of the profiles by {Settings.conf_dir.name}"
            )


def check(name: str, *, may_lie_elsewhere: bool) -> None:
    """Raise ArgumentError for an unknown profile, where it is only named because a session exists already.

    Args:
        name: name of the profile.
        may_lie_elsewhere: whether the session was created where other profiles may exist; then only a name that differs
            by about a letter from a known one is rejected.
    """
    known = names()
    meant = suggestions.similar_names(name, known, TYPING_ERROR if may_lie_elsewhere else suggestions.LEAST)
    if name not in known and (meant or not may_lie_elsewhere):
        raise _unknown(name, meant)


def _unknown(name: str, meant: list[str]) -> ArgumentError:
    """Return the error for an unknown profile, with similar names."""
    return ArgumentError(
        f"profile '{name}' is unknown; the known profiles are {', '.join(names()) or 'none'} (in "
        f"{', '.join(map(str, folders()))})" + (f"; did you mean {' or '.join(meant)}?" if meant else "")
    )


def _with_environment(profile: Profile) -> Profile:
    """Apply HOPSML_SPARK_MASTER to a profile with Spark, or HOPSML_LOCAL_SLOTS (concurrent workers) to one without."""
    if profile.uses_spark:
        return dataclasses.replace(profile, master=SETTINGS.spark_master) if SETTINGS.spark_master else profile
    slots = SETTINGS.local_slots
    return profile if slots is None else dataclasses.replace(profile, local_slots=slots)


def parse(name: str, text: str, source: str) -> Profile:
    """Parse a profile from YAML.

    Args:
        name: name of the profile.
        text: the YAML.
        source: name of the file, for messages.

    Raises:
        ArgumentError: the text is not a valid profile.
    """
    import yaml

    try:
        content = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ArgumentError(f"{source} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ArgumentError(f"{source} must contain keys and values, but contains a {type(content).__name__}")
    for key in content:
        if key not in _KEYS:
            meant = suggestions.suggestion_text(str(key), _KEYS, f"a profile has: {', '.join(_KEYS)}")
            raise ArgumentError(f"{source}: unknown key '{key}': {meant}")
    base = load(content["extends"]) if "extends" in content else None
    if base is not None:
        content = _below(base, content)
    if not isinstance(content.get("master"), str):
        raise ArgumentError(
            f"{source}: the key 'master' is missing; add it, for instance as local-cluster[2,2,1024], yarn, or none"
        )
    return Profile(
        name=name,
        master=content["master"],
        deploy_mode=str(content.get("deploy_mode", "client")),
        store=str(content.get("store") or ""),
        spark={
            str(key): _spark_text(str(key), _text(value).replace("{conf}", os.path.dirname(source)))
            for key, value in (content.get("spark") or {}).items()
        },
        environment={str(key): _text(value) for key, value in (content.get("environment") or {}).items()},
        local_slots=content.get("local_slots"),
        class_data=content.get("class_data") is True,
        ship_environment=str(content.get("ship_environment") or "never"),
        description=str(content.get("description", "")),
    )


def _below(base: Profile, content: dict[str, Any]) -> dict[str, Any]:
    """Return ``content`` with the base's values where it has none; Spark settings and variables are merged by key."""
    merged = {**dataclasses.asdict(base), **content}
    for table in ("spark", "environment"):
        merged[table] = {**getattr(base, table), **(content.get(table) or {})}
    return {key: value for key, value in merged.items() if key not in ("name", "extends")}


def _text(value: Any) -> str:
    """Convert a YAML value to the text of a setting."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spark_text(key: str, value: str) -> str:
    """Return a Spark setting; Spark refuses a driver's IPv6 address without brackets."""
    is_bare = key in ("spark.driver.host", "spark.driver.bindAddress") and ":" in value and not value.startswith("[")
    return f"[{value}]" if is_bare else value
