"""Tests of class-data archives: used if they fit, ignored otherwise; created by a real Spark in one test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml import class_data, submission
from hopsml.class_data import OPTIONS, archive_of, with_archives
from hopsml.core import profiles
from hopsml.errors import ArgumentError
from hopsml.submission import spark_command
from tests.helpers.clock import END_S

SETTINGS = {OPTIONS["driver"]: "-XX:+UseSerialGC", OPTIONS["executor"]: "-XX:+UseSerialGC", "spark.app.name": "x"}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java and a Spark, as far as their files count."""
    for file in ("java/bin/java", "java/lib/server/libjvm.so", "spark/jars/a.jar"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(file)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_CONF_DIR")
    return tmp_path


def create_empty_archive(role: str) -> Path:
    archive = archive_of(role, SETTINGS)
    assert archive is not None
    archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    archive.touch(mode=0o600)
    return archive


@pytest.mark.fast
def test_settings_are_unchanged_without_an_archive(installed):
    assert with_archives(SETTINGS) == SETTINGS


@pytest.mark.fast
def test_archive_is_used_by_its_role_only(installed):
    archive = create_empty_archive("driver")
    found = with_archives(SETTINGS)
    assert found[OPTIONS["driver"]].startswith(f"-XX:+UseSerialGC -XX:SharedArchiveFile={archive} -Xshare:auto")
    assert {**found, OPTIONS["driver"]: SETTINGS[OPTIONS["driver"]]} == SETTINGS


@pytest.mark.fast
def test_archive_that_others_may_have_written_is_not_used(installed):
    """The JVM runs the classes in it; XDG_CACHE_HOME may name a folder of several users."""
    archive = create_empty_archive("driver")
    for place in (archive, archive.parent):
        place.chmod(0o770)
        assert with_archives(SETTINGS) == SETTINGS
        place.chmod(0o700)
        if os.geteuid() == 0:
            os.chown(place, 65534, -1)
            assert with_archives(SETTINGS) == SETTINGS
            os.chown(place, 0, -1)
    assert with_archives(SETTINGS) != SETTINGS


@pytest.mark.fast
@pytest.mark.parametrize("changed", ["java/lib/server/libjvm.so", "spark/jars/a.jar"])
def test_archive_of_another_java_or_spark_is_not_used(installed, changed):
    create_empty_archive("executor")
    (installed / changed).write_text("a newer one")
    assert with_archives(SETTINGS) == SETTINGS


@pytest.mark.fast
def test_archive_of_other_jvm_options_is_not_used(installed):
    create_empty_archive("driver")
    other = {**SETTINGS, OPTIONS["driver"]: "-XX:+UseParallelGC"}
    assert with_archives(other) == other


@pytest.mark.fast
def test_archive_set_by_the_user_is_retained(installed):
    own = {OPTIONS["driver"]: "-XX:SharedArchiveFile=/mine.jsa"}
    archive = archive_of("driver", own)
    assert archive is not None
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert with_archives(own) == own


@pytest.mark.fast
def test_no_archive_is_used_or_created_without_java(installed, monkeypatch):
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(installed))
    assert with_archives(SETTINGS) == SETTINGS
    with pytest.raises(ArgumentError, match="need Java and Spark, which are not installed"):
        class_data.make_archives(SETTINGS, "spark-submit")


@pytest.mark.fast
def test_profile_chooses_whether_archives_are_used(installed):
    text = "master: local-cluster[2,2,1024]\nspark: {spark.driver.extraJavaOptions: -XX:+UseSerialGC}\n"
    create_empty_archive("driver")
    without, using = (profiles.parse("x", more + text, "x.yaml") for more in ("", "class_data: true\n"))
    assert without.settings() == without.spark
    assert "SharedArchiveFile" in using.settings()[OPTIONS["driver"]]


@pytest.mark.fast
def test_output_of_a_failed_application_is_shown_and_no_file_is_left(installed):
    spark_submit = installed / "spark-submit"
    spark_submit.write_text("#!/bin/sh\necho no memory left; exit 7\n")
    spark_submit.chmod(0o755)
    with pytest.raises(ArgumentError, match=r"ended with status 7:\nno memory left"):
        class_data.make_archives(SETTINGS, str(spark_submit))
    assert list((installed / "cache" / "hopsml" / "class-data").iterdir()) == []


@pytest.mark.fast
@pytest.mark.parametrize("named", [True, False])
def test_settings_folder_on_the_class_path_is_refused_with_its_name(installed, tmp_path, monkeypatch, named):
    conf = tmp_path / "elsewhere" if named else installed / "spark" / "conf"
    conf.mkdir(parents=True)
    if named:
        monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    (conf / "spark-defaults.conf").write_text("spark.ui.enabled false\n")
    with pytest.raises(ArgumentError, match=f"{conf} contains files, and Java creates no class-data archive"):
        class_data.make_archives(SETTINGS, str(installed / "spark-submit"))


@pytest.mark.spark
@pytest.mark.variant  # three Sparks one after another; every other Spark of the tests uses archives where they are made
def test_jvms_map_their_archives_and_start_without_a_damaged_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_CONF_DIR")  # the tests' own, which holds a file
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("SPARK_WORKER_DIR", str(tmp_path / "work"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    profile = profiles.load("local-cluster")
    made = class_data.make_archives(profile.spark, spark_command.spark_submit_path())
    assert mapped(profile) == {role: [str(path)] for role, path in made.items()}
    made["driver"].write_bytes(b"not an archive")
    assert mapped(profile) == {"driver": [], "executor": [str(made["executor"])]}


def mapped(profile: profiles.Profile) -> dict[str, list[str]]:
    """Return hopsml's archives in the memory of the JVMs of a job."""
    line = submission.build_command(profile, str(Path(__file__).parent / "jobs" / "mapped.py"))
    done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True, timeout=END_S)
    found = json.loads(done.stdout.splitlines()[-1])
    return {role: [path for path in paths if "class-data" in path] for role, paths in found.items()}
