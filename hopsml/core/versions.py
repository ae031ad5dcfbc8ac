"""Versions of Python, Java, Spark and the frameworks with which hopsml is supported.

The table is the only place that lists them: the checks of a host, the warning when a worker imports a framework, the
extras of the package and the page "Supported versions" follow from it. To support another version, add it here, play
its cell of ``make matrix``, and run ``python -m tools.supported_versions``.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata

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
        remedy: what installs or selects ``{version}``; by default pip's command.
    """

    package: str
    title: str
    supported: tuple[Version, ...]
    oldest: Version = ()
    why_not_older: str = ""
    remedy: str = "pip install '{package}=={version}.*'"

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
        """Return what installs or selects the supported version closest to ``version``."""
        return self.remedy.format(package=self.package, version=self.nearest(version))


def _minors(major: int, first: int, last: int) -> tuple[Version, ...]:
    return tuple((major, minor) for minor in range(first, last + 1))


PYTHON = SupportedVersions(
    "python", "Python", _minors(3, 10, 13), (3, 10), "it uses syntax of Python 3.10", "use Python {version}"
)
PYSPARK = SupportedVersions("pyspark", "Spark (pyspark)", (*_minors(3, 3, 5), *_minors(4, 0, 3)))
TENSORFLOW = SupportedVersions(
    "tensorflow",
    "TensorFlow",
    _minors(2, 16, 21),
    (2, 16),
    "Keras 3 needs TensorFlow 2.16 or later (with TF_USE_LEGACY_KERAS=1 and tf_keras 2.15, TensorFlow 2.15 works, too)",
)
TENSORFLOW_WITH_KERAS_2 = SupportedVersions(
    "tensorflow",
    "TensorFlow with Keras 2 (tf_keras)",
    _minors(2, 15, 21),
    (2, 15),
    "the oldest one that was tried with tf_keras is 2.15",
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
HADOOP = SupportedVersions("hadoop", "Hadoop", _minors(3, 3, 5), remedy="a cluster with Hadoop {version} was tried")
ALL = (PYTHON, PYSPARK, TENSORFLOW, TENSORFLOW_WITH_KERAS_2, KERAS, TORCH, JAX, NUMPY, PANDAS, HADOOP)


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


def uses_keras_2(environment: Mapping[str, str]) -> bool:
    """Return True if the user has chosen tf_keras, Keras 2, in place of Keras 3."""
    return environment.get("TF_USE_LEGACY_KERAS", "") in ("1", "true", "True")


def tensorflow_versions(environment: Mapping[str, str]) -> SupportedVersions:
    """Return the supported versions of TensorFlow with the Keras that the environment variables choose."""
    return TENSORFLOW_WITH_KERAS_2 if uses_keras_2(environment) else TENSORFLOW


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
    if found != "works":
        _report(known, version, known.why_not_older if found == "broken" else "")


def check_installed(known: SupportedVersions) -> None:
    """Check the installed version of a package as ``check_version`` does, without an import; a missing one is accepted."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        check_version(known, metadata.version(known.package))


def check_spark(pyspark: str, python: str) -> None:
    """Check a version of Spark, and the driver's Python together with it, as ``check_version`` does."""
    check_version(PYSPARK, pyspark)
    needs = spark_needs(pyspark)
    if parse_version(python)[:2] > needs.newest_python:
        suitable = tuple(one for one in PYTHON.supported if one <= needs.newest_python)
        why = f"the cloudpickle of Spark {version_text(needs.spark)} does not serialize its functions"
        _report(replace(PYTHON, supported=suitable), python, why)


def check_java(java: int, pyspark: str) -> None:
    """Check a feature version of Java for a version of Spark, as ``check_version`` does."""
    needs = spark_needs(pyspark)
    suitable = tuple((one,) for one in needs.javas)
    why = f"it is too old for Spark {version_text(needs.spark)}"
    remedy = "install Java {version}, and set JAVA_HOME to its folder"
    check_version(SupportedVersions("java", "Java", suitable, suitable[0], why, remedy), str(java))


def _report(known: SupportedVersions, version: str, why_broken: str) -> None:
    """Raise or warn about a version that is broken, or, without a reason for that, has not been tried."""
    supported, setting = versions_text(known.supported), Settings.any_version.name
    if not why_broken and SETTINGS.any_version:
        return
    if why_broken and not SETTINGS.any_version:
        raise UnsupportedVersion(
            f"{known.package} {version} does not work with hopsml: {why_broken}; supported: {supported}. "
            f"Remedy: {known.install_command(version)}, or {setting}=1 to continue regardless"
        )
    if known.package not in _warned:
        _warned.add(known.package)
        what = "does not work" if why_broken else "has not been tried"
        hide = "" if why_broken else f"; {setting}=1 hides this warning"
        warnings.warn_explicit(
            f"{known.package} {version} {what} with hopsml; supported: {supported}. Training continues; if it fails "
            f"for no clear reason, {known.install_command(version)}{hide}.",
            RuntimeWarning,
            "hopsml",  # instead of a line of the preparation of a worker, which is not the user's
            1,
        )
