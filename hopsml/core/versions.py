"""Versions of Python, Java, Spark and the frameworks with which hopsml is supported.

The table is the only place that lists them: the checks of a host, the warning when a worker imports a framework, the
extras of the package and the page "Supported versions" follow from it. To support another version, add it here, play
its cell of ``make matrix``, and run ``python -m tools.supported_versions``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import UnsupportedVersion

Version = tuple[int, ...]


@dataclass(frozen=True)
class SupportedVersions:
    """Supported versions of one package or program; as many numbers of a version count as ``supported`` has.

    Attributes:
        package: name in messages; a distribution's name is its name on a package index.
        title: name on the page.
        supported: versions in ascending order.
        oldest: versions below it are known to fail; () if none is.
        why_not_older: reason for ``oldest``, for the message.
    """

    package: str
    title: str
    supported: tuple[Version, ...]
    oldest: Version = ()
    why_not_older: str = ""

    def verdict(self, version: str) -> str:
        """Return "works", "unknown" (not tested) or "broken" (older than the oldest that works)."""
        found = parse_version(version)
        if found < self.oldest:
            return "broken"
        return "works" if found[: len(self.supported[0])] in self.supported else "unknown"

    def nearest(self, version: str) -> str:
        """Return the supported version closest to ``version``."""
        found = parse_version(version)[: len(self.supported[0])]
        below = [one for one in self.supported if one <= found]
        return version_text(below[-1] if below else self.supported[0])

    def install_command(self, version: str) -> str:
        """Return the command that installs the supported version closest to ``version``."""
        return f"pip install '{self.package}=={self.nearest(version)}.*'"


def _minors(major: int, first: int, last: int) -> tuple[Version, ...]:
    return tuple((major, minor) for minor in range(first, last + 1))


PYTHON = SupportedVersions("python", "Python", _minors(3, 10, 13), (3, 10), "it uses syntax of Python 3.10")
PYSPARK = SupportedVersions("pyspark", "Spark (pyspark)", (*_minors(3, 3, 5), *_minors(4, 0, 3)))
TENSORFLOW = SupportedVersions(
    "tensorflow", "TensorFlow", _minors(2, 16, 21), (2, 16), "Keras 3 needs TensorFlow 2.16 or later"
)
KERAS = SupportedVersions(
    "keras",
    "Keras",
    ((3, 12), (3, 15)),
    (3, 11),  # 3.5, 3.8 and 3.10 were tried: fit fails on the first batch
    "its trainer differs in the parts that hopsml repairs, and fit fails (for Keras 2 use tf_keras)",
)
TORCH = SupportedVersions("torch", "PyTorch", _minors(2, 4, 15))
JAX = SupportedVersions("jax", "JAX", _minors(0, 9, 12))
NUMPY = SupportedVersions("numpy", "NumPy", ((1, 26), *_minors(2, 0, 5)), (1, 26), "it uses functions of NumPy 1.26")
PANDAS = SupportedVersions("pandas", "pandas", ((2,), (3,)))
HADOOP = SupportedVersions("hadoop", "Hadoop", _minors(3, 3, 5))
ALL = (PYTHON, PYSPARK, TENSORFLOW, KERAS, TORCH, JAX, NUMPY, PANDAS, HADOOP)


@dataclass(frozen=True)
class SparkNeeds:
    """Requirements of one minor version of Spark.

    Attributes:
        spark: first two numbers of the version.
        javas: supported feature versions of Java.
        newest_python: newest Python whose functions this Spark's cloudpickle serializes.
    """

    spark: Version
    javas: tuple[int, ...]
    newest_python: Version


SPARK_NEEDS = (
    SparkNeeds((3, 3), (8, 11, 17), (3, 10)),
    SparkNeeds((3, 4), (8, 11, 17), (3, 11)),
    SparkNeeds((3, 5), (8, 11, 17), (3, 12)),  # its Arrow fails on Java 21: DirectByteBuffer is not available
    *(SparkNeeds(version, (17, 21), (3, 13)) for version in _minors(4, 0, 2)),
    SparkNeeds((4, 3), (17, 21, 25), (3, 13)),
)


def spark_needs(pyspark: str) -> SparkNeeds:
    """Return the requirements of a version of pyspark; of the newest supported one below it if it is not supported."""
    found = parse_version(pyspark)[:2] or SPARK_NEEDS[-1].spark
    return [needs for needs in SPARK_NEEDS if needs.spark <= max(found, SPARK_NEEDS[0].spark)][-1]


def parse_version(text: str) -> Version:
    """Return the leading numbers of a version: "2.21.0-rc1" is (2, 21, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def version_text(version: Version) -> str:
    """Return a version as text: (2, 21) is "2.21"."""
    return ".".join(map(str, version))


def versions_text(versions: Sequence[Version]) -> str:
    """Return versions as text, for instance "1.26, 2.0 to 2.5"."""
    spans: list[list[Version]] = []
    for version in versions:
        if spans and spans[-1][-1] == (*version[:-1], version[-1] - 1):
            spans[-1].append(version)
        else:
            spans.append([version])
    return ", ".join(
        version_text(span[0]) if len(span) == 1 else f"{version_text(span[0])} to {version_text(span[-1])}"
        for span in spans
    )


_warned: set[str] = set()


def check_version(known: SupportedVersions, version: str) -> None:
    """Raise UnsupportedVersion for a broken version; warn, once for each process, for one outside of the table.

    With ``HOPSML_ANY_VERSION=1`` a broken version is a warning, too, and other versions none.
    """
    found = known.verdict(version)
    supported, setting = versions_text(known.supported), Settings.any_version.name
    if found == "works" or (found == "unknown" and SETTINGS.any_version):
        return
    if found == "broken" and not SETTINGS.any_version:
        raise UnsupportedVersion(
            f"{known.package} {version} does not work with hopsml: {known.why_not_older}; supported: {supported}. "
            f"Remedy: {known.install_command(version)}, or {setting}=1 to continue regardless"
        )
    if known.package not in _warned:
        _warned.add(known.package)
        what = "does not work" if found == "broken" else "has not been tried"
        warnings.warn_explicit(
            f"{known.package} {version} {what} with hopsml; supported: {supported}. Training continues; if it fails "
            f"for no clear reason, {known.install_command(version)}.",
            RuntimeWarning,
            "hopsml",  # instead of a line of the preparation of a worker, which is not the user's
            1,
        )
