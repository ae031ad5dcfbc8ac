"""Tests of the build of the classes by which Spark's JVM sends rows to workers."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools import build_spark_push


@pytest.mark.fast
def test_without_a_compiler_it_says_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_spark_push, "JAR", tmp_path / "push.jar")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    build_spark_push.main()
    assert "javac is missing: rows of DataFrames, data=, go to the workers by Python" in capfd.readouterr().out


@pytest.mark.local
@pytest.mark.variant  # make test has built it
def test_it_is_built_once_for_its_sources_and_its_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tmp_path / "lib" / "push.jar"
    monkeypatch.setattr(build_spark_push, "JAR", jar)
    build_spark_push.build()
    built = jar.stat().st_mtime_ns
    with zipfile.ZipFile(jar) as content:
        assert "io/hopsml/PushRows.class" in content.namelist()
    build_spark_push.build()
    assert jar.stat().st_mtime_ns == built
    jar.with_suffix(".built-of").write_text("of something else")
    build_spark_push.build()
    assert jar.stat().st_mtime_ns > built
