"""Tests of the build of the classes by which Spark's JVM sends rows to workers."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tools import build_spark_push

JAVA_8 = 52  # major version of its class files
# what Scala 2.12 lacks; scala.Seq is another class in each of the two versions
ONLY_2_13 = (b"scala/jdk/", b"scala/collection/immutable/Seq", b"scala/collection/IterableOnce")


@pytest.mark.fast
def test_missing_java_compiler_is_reported_with_its_consequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_spark_push, "JAR", tmp_path / "push.jar")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    build_spark_push.main()
    assert "javac is missing: rows of DataFrames, data=, go to the workers by Python" in capfd.readouterr().out


@pytest.mark.local
def test_push_classes_load_in_java_8_and_with_scala_2_12() -> None:
    with zipfile.ZipFile(build_spark_push.build()) as content:  # make test has built it
        classes = {name: content.read(name) for name in content.namelist() if name.endswith(".class")}
    assert "io/hopsml/PushJob.class" in classes
    for name, code in classes.items():
        assert int.from_bytes(code[6:8]) == JAVA_8, name
        assert not [package for package in ONLY_2_13 if package in code], name


@pytest.mark.local
@pytest.mark.variant  # make test has built it
def test_push_jar_is_rebuilt_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
