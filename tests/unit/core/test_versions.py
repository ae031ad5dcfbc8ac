"""Tests of the table of supported versions, and of everything that is derived from it."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from hopsml.core import versions
from hopsml.core.versions import (
    KERAS,
    NUMPY,
    PYSPARK,
    PYTHON,
    SPARK_NEEDS,
    TENSORFLOW,
    TENSORFLOW_WITH_KERAS_2,
    TORCH,
    SupportedVersions,
    check_installed,
    check_java,
    check_spark,
    check_version,
    parse_version,
    spark_needs,
    tensorflow_versions,
    version_text,
    versions_text,
)
from hopsml.errors import UnsupportedVersion
from tools import supported_versions

pytestmark = pytest.mark.fast

PYPROJECT = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def no_earlier_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_warned", set())
    monkeypatch.delenv("HOPSML_ANY_VERSION", raising=False)


def test_versions_are_parsed_up_to_their_suffix() -> None:
    assert parse_version("2.21.0-rc1") == (2, 21, 0)
    assert parse_version("2.9") < parse_version("2.21")
    assert parse_version("unknown") == ()


def test_consecutive_versions_are_shown_as_spans() -> None:
    assert versions_text(NUMPY.supported) == "1.26, 2.0 to 2.5"
    assert versions_text([(2,), (3,)]) == "2 to 3"


@pytest.mark.parametrize(
    ("known", "version", "expected"),
    [
        (TENSORFLOW, "2.21.0", "works"),
        (TENSORFLOW, "2.17.1", "works"),
        (TENSORFLOW, "2.22.1", "unknown"),
        (TENSORFLOW, "2.4.0", "broken"),
        (TENSORFLOW, "2.15.1", "broken"),
        (TENSORFLOW_WITH_KERAS_2, "2.15.1", "works"),
        (TENSORFLOW_WITH_KERAS_2, "2.14.1", "broken"),
        (KERAS, "3.12.2", "works"),
        (KERAS, "3.11.0", "unknown"),
        (KERAS, "3.10.0", "broken"),
        (TORCH, "2.4.1+cpu", "works"),
        (TORCH, "2.3.1", "unknown"),
        (PYSPARK, "3.2.0", "unknown"),
        (NUMPY, "1.24.4", "broken"),
    ],
)
def test_verdict_of_a_version_follows_from_the_supported_range(
    known: SupportedVersions, version: str, expected: str
) -> None:
    assert known.verdict(version) == expected


@pytest.mark.parametrize(
    ("known", "version", "nearest"),
    [
        (TENSORFLOW, "2.15.1", "2.16"),
        (TENSORFLOW, "2.30.0", "2.21"),
        (PYSPARK, "3.9.0", "3.5"),
        (PYTHON, "3.9.1", "3.10"),
    ],
)
def test_nearest_supported_version_is_named(known: SupportedVersions, version: str, nearest: str) -> None:
    assert known.nearest(version) == nearest


def test_keras_that_the_environment_chooses_decides_on_the_versions_of_tensorflow() -> None:
    assert tensorflow_versions({"TF_USE_LEGACY_KERAS": "1"}) is TENSORFLOW_WITH_KERAS_2
    assert tensorflow_versions({"TF_USE_LEGACY_KERAS": "0"}) is tensorflow_versions({}) is TENSORFLOW


def test_broken_version_is_refused_with_the_nearest_one_and_the_setting() -> None:
    with pytest.raises(
        UnsupportedVersion, match=r"tensorflow 1\.15\.5 does not work.*==2\.16\.\*.*HOPSML_ANY_VERSION=1"
    ):
        check_version(TENSORFLOW, "1.15.5")


def test_broken_version_is_a_warning_if_any_version_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_ANY_VERSION", "1")
    with pytest.warns(RuntimeWarning, match=r"keras 3\.10\.0 does not work"):
        check_version(KERAS, "3.10.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_version(TORCH, "2.99.0")


def test_untested_version_is_warned_about_once() -> None:
    with pytest.warns(RuntimeWarning, match=r"keras 3\.99\.0 has not been tried.*HOPSML_ANY_VERSION=1 hides"):
        check_version(KERAS, "3.99.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_version(KERAS, "3.99.0")
        check_version(KERAS, "3.15.1")


def test_spark_is_checked_together_with_the_python_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_spark("4.3.0", "3.13.1")
        check_spark("3.3.4", "3.10.13")
    refused = r"python 3\.11\.7 does not work.*cloudpickle of Spark 3\.3.*use Python 3\.10, or HOPSML_ANY_VERSION=1"
    with pytest.raises(UnsupportedVersion, match=refused):
        check_spark("3.3.4", "3.11.7")
    with pytest.warns(RuntimeWarning, match=r"pyspark 3\.2\.1 has not been tried.*pip install 'pyspark==3\.3\.\*'"):
        check_spark("3.2.1", "3.10.1")
    monkeypatch.setenv("HOPSML_ANY_VERSION", "1")
    with pytest.warns(RuntimeWarning, match=r"python 3\.11\.7 does not work"):
        check_spark("3.3.4", "3.11.7")


def test_java_is_checked_against_the_spark_that_it_runs() -> None:
    with pytest.raises(
        UnsupportedVersion, match=r"java 11 does not work.*too old for Spark 4\.0.*install Java 17, and set"
    ):
        check_java(11, "4.0.1")
    with pytest.warns(RuntimeWarning, match=r"java 21 has not been tried with hopsml; supported: 8, 11, 17"):
        check_java(21, "3.5.9")
    check_java(8, "3.5.9")


def test_installed_package_is_checked_without_an_import() -> None:
    check_installed(NUMPY)
    check_installed(replace(NUMPY, package="no-such-package"))
    with pytest.raises(UnsupportedVersion, match=r"numpy \d.*does not work with hopsml: too old.*==99\.0\.\*"):
        check_installed(replace(NUMPY, supported=((99, 0),), oldest=(99, 0), why_not_older="too old"))


def test_python_is_checked_at_the_import_of_the_verbs() -> None:
    program = "import platform; platform.python_version = lambda: '3.15.0'; import hopsml.experiment"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.count("python 3.15.0 has not been tried with hopsml; supported: 3.10 to 3.13") == 1
    assert "use Python 3.13" in done.stderr


def test_each_supported_spark_has_requirements() -> None:
    assert tuple(needs.spark for needs in SPARK_NEEDS) == PYSPARK.supported
    assert {needs.newest_python for needs in SPARK_NEEDS} <= set(PYTHON.supported)
    assert spark_needs("3.5.9").spark == (3, 5) and spark_needs("5.1").spark == (4, 3) == spark_needs("").spark


def bounds(requirement: str) -> set[str]:
    """Return the bounds of a requirement in pyproject.toml."""
    found = re.search(rf'"{re.escape(requirement)}([<>=][^";]*)', PYPROJECT)
    assert found, requirement
    return set(found.group(1).split(","))


def test_bounds_of_the_package_equal_those_of_the_table() -> None:
    assert f'requires-python = ">={version_text(PYTHON.supported[0])}"' in PYPROJECT
    assert f">={version_text(PYSPARK.supported[0])}" in bounds("pyspark")
    assert f">={version_text(NUMPY.supported[0])}" in bounds("numpy")
    newest = TENSORFLOW.supported[-1]
    for name in ("tensorflow", "tensorflow-cpu"):
        assert bounds(name) == {f">={version_text(TENSORFLOW.oldest)}", f"<{newest[0]}.{newest[1] + 1}"}
    newest = TORCH.supported[-1]  # newer ones failed before: the extra brings one that was tried
    assert bounds("torch") == {f">={version_text(TORCH.supported[0])}", f"<{newest[0]}.{newest[1] + 1}"}
    assert f">={version_text(KERAS.supported[0])}" in bounds("keras")


def test_page_of_supported_versions_is_up_to_date() -> None:
    written = supported_versions.PAGE.read_text(encoding="utf-8")
    assert written == supported_versions.page(), "run python -m tools.supported_versions"
