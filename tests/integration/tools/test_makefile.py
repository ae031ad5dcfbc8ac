"""Tests of every target of the Makefile: cheap targets in the default set, expensive ones as variants."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import zipfile
from pathlib import Path

import pytest

from benchmarks.studies.__main__ import STUDIES
from hopsml.core import versions

ROOT = Path(__file__).resolve().parents[3]
MAKE = str(shutil.which("make"))
CURRENT = [word for file in (".venv/.complete", ".cache/native/built", ".cache/compiled") for word in ("-o", file)]

JAR = "hopsml-spark-push.jar"
WITHOUT_CARGO = {"CARGO": "no-such-cargo"}  # whose library takes minutes

# Target -> the file and the name of a test that runs it.
RUN_BY = {
    "help": "integration/tools/test_makefile.py::test_help_lists_every_target",
    "setup": "integration/tools/test_setup_environment.py::test_setup_without_java_and_maven_succeeds_with_notes",
    "tf-hdfs": "integration/tools/test_makefile.py::test_tf_hdfs_builds_the_library",
    "airflow": "integration/tools/test_makefile.py::test_airflow_target_creates_its_environment",
    "lock": "integration/tools/test_makefile.py::test_lock_pins_the_newest_versions_of_an_index",
    "lint": "integration/tools/test_makefile.py::test_lint_passes",
    "types": "integration/tools/test_makefile.py::test_lint_passes",
    "style": "integration/tools/test_makefile.py::test_lint_passes",
    "docs": "integration/docs/test_site.py::site",
    "test-fast": "integration/tools/test_makefile.py::test_targets_run_the_tests_selected_by_their_markers",
    "test": "integration/tools/test_makefile.py::test_targets_run_the_tests_selected_by_their_markers",
    "test-all": "integration/tools/test_makefile.py::test_targets_run_the_tests_selected_by_their_markers",
    "bench": "integration/tools/test_makefile.py::test_bench_takes_its_options",
    "studies": "integration/tools/test_makefile.py::test_studies_makes_a_picture",
    "chaos": "integration/tools/test_makefile.py::test_chaos_plays_a_scenario",
    "features": "unit/tools/test_features.py::test_every_feature_is_equal_or_refused_with_several_workers",
    "mission": "integration/tools/test_makefile.py::test_mission_compares_the_page_with_test_results",
    "matrix": "integration/tools/test_makefile.py::test_matrix_names_the_cells_that_can_be_selected",
    "hadoop-versions": "integration/tools/test_makefile.py::test_hadoop_versions_names_the_releases_that_can_be_selected",
    "fuzz": "integration/tools/test_makefile.py::test_fuzz_names_the_targets_that_can_be_selected",
    "test-secure": "integration/tools/test_makefile.py::test_test_secure_fails_without_a_selected_scenario",
    "soak": "soak/test_soak.py::test_short_soak_finds_no_growth",
    "mutants": "integration/tools/test_makefile.py::test_mutants_target_runs_one_module",
    "hadoop-up": "integration/tools/test_makefile.py::test_hadoop_up_and_down_start_and_stop_the_cluster",
    "hadoop-down": "integration/tools/test_makefile.py::test_hadoop_up_and_down_start_and_stop_the_cluster",
    "wheel": "integration/tools/test_makefile.py::test_release_builds_wheels_checksums_and_sbom",
    "release": "integration/tools/test_makefile.py::test_release_builds_wheels_checksums_and_sbom",
    "demo": "integration/tools/test_makefile.py::test_demo_trains_on_spark",
    "demo-yarn": "integration/tools/test_makefile.py::test_demo_runs_on_yarn",
    "demo-service": "integration/tools/test_makefile.py::test_demo_runs_on_yarn",
    "clean": "integration/tools/test_makefile.py::test_clean_removes_built_files",
}


def make(folder: Path, *arguments: str, timeout_s: float = 380, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run make in a folder whose environment counts as complete."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST_XDIST", "UV_"))
    }
    with subprocess.Popen(
        [MAKE, *CURRENT, *arguments], cwd=folder, env={**inherited, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # what make has started, too
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def made(folder: Path, *arguments: str, timeout_s: float = 380, **variables: str) -> str:
    """Run a target and return its output; fail the test if the target fails."""
    done = make(folder, *arguments, timeout_s=timeout_s, **variables)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy the files that targets need; the environment is this repository's."""
    for name in ("Makefile", "setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("requirements", "tools", "native/tf_hdfs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / ".cache").mkdir()
    return tmp_path


@pytest.mark.fast
def test_every_make_target_is_run_by_a_test() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split())  # type: ignore[index]
    rules = set(re.findall(r"^([a-z][a-z-]*):(?![=:])(?! [A-Z_]+ *:?=)", text, re.M))
    assert phony == rules == RUN_BY.keys()
    for place in RUN_BY.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text()


@pytest.mark.local
def test_mission_compares_the_page_with_test_results(tree: Path) -> None:
    (tree / "docs").mkdir()
    shutil.copy(ROOT / "docs/mission.md", tree / "docs/mission.md")
    (tree / "tests").symlink_to(ROOT / "tests")
    assert "run `make test-all` first" in make(tree, "mission").stderr
    (tree / ".cache/test-results").mkdir()
    case = '<testcase classname="tests.integration.spark.test_digits" name="{}"/>'
    name = "test_accuracy_and_equal_weights_do_not_depend_on_the_number_of_workers"
    (tree / ".cache/test-results/all.xml").write_text(f"<testsuite>{case.format(name)}</testsuite>")
    report = json.loads(made(tree, "mission").splitlines()[-1])
    assert (report["rows"], report["met"], report["tests_missing"], report["tests_failed"]) == (61, 1, [], [])
    assert len(report["tests_not_run"]) > 60


@pytest.mark.local
def test_matrix_names_the_cells_that_can_be_selected() -> None:
    done = make(ROOT, "matrix", CELLS="of-no-such-name")
    assert done.returncode != 0
    assert "no cell is named of-no-such-name; there are: " in done.stderr
    assert {"oldest,", "newest,"} <= set(done.stderr.split())


@pytest.mark.local
def test_hadoop_versions_names_the_releases_that_can_be_selected() -> None:
    done = make(ROOT, "hadoop-versions", RELEASES="2.7")
    assert done.returncode != 0
    assert "no release is named 2.7; there are: 3.3.6, 3.4.1" in done.stderr


@pytest.mark.local
def test_fuzz_names_the_targets_that_can_be_selected() -> None:
    done = make(ROOT, "fuzz", TARGETS="none-such")
    assert done.returncode != 0
    assert "there is no target 'none-such'; the targets are agent-messages, frames," in done.stderr


@pytest.mark.local
def test_test_secure_fails_without_a_selected_scenario() -> None:
    done = make(ROOT, "test-secure", SECURE="-k none_such")
    assert done.returncode != 0
    expected = {"scenarios": 0, "failed": [], "bytes_lost": 0, "secrets_found": 0}
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@pytest.mark.local
def test_help_lists_every_target() -> None:
    listed = {line.split()[0] for line in made(ROOT, "help").splitlines()}
    assert listed == RUN_BY.keys() - {"types", "style"}


@pytest.mark.local
def test_lock_pins_the_newest_versions_of_an_index(tree: Path) -> None:
    wheels = tree / "wheels"
    wheels.mkdir()
    for version in ("1.0", "1.1"):
        _write_wheel(wheels, "planted", version)
    for name in ("dev", "airflow"):
        (tree / "requirements" / f"{name}.in").write_text("planted\n")
    (tree / "requirements" / "no-deps.txt").write_text("# of its own accord\nanother==2.0\n")
    subprocess.run(["git", "init", "-q", tree], check=True)
    made(tree, "lock", UV_NO_INDEX="1", UV_FIND_LINKS=str(wheels), UV_CACHE_DIR=str(tree / "uv"))
    assert (tree / "requirements" / "dev.txt").read_text() == "planted==1.1\nanother==2.0\n"
    assert (tree / "requirements" / "airflow.txt").read_text() == "planted==1.1\n"


def _write_wheel(folder: Path, name: str, version: str) -> None:
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.mark.local
@pytest.mark.parametrize(
    ("target", "ran"),
    [
        ("test-fast", ["fast"]),
        pytest.param("test", ["fast", "local"], marks=pytest.mark.variant),
        pytest.param("test-all", ["airflow", "fast", "local", "variant"], marks=pytest.mark.variant),
    ],
)
def test_targets_run_the_tests_selected_by_their_markers(tree: Path, target: str, ran: list[str]) -> None:
    (tree / "tests").mkdir()
    lines = ["import pytest"]
    for name, marks in {"fast": ["fast"], "local": ["local"], "airflow": ["airflow", "variant"]}.items():
        lines += [*(f"@pytest.mark.{mark}" for mark in marks), f"def test_{name}():", f"    open('ran-{name}', 'w')"]
    lines += ["@pytest.mark.fast", "@pytest.mark.variant", "def test_variant():", "    open('ran-variant', 'w')"]
    (tree / "tests" / "test_all_kinds.py").write_text("\n".join(lines) + "\n")
    made(tree, "-o", "lint", target, "MINUTES=0.01", "TARGETS=frames", **WITHOUT_CARGO)
    assert sorted(path.name.removeprefix("ran-") for path in tree.glob("ran-*")) == ran


@pytest.mark.local
def test_clean_removes_built_files(tree: Path) -> None:
    for name in ("dist", "build", "mutants", "hopsml/collective/lib", ".cache/native", "tests/__pycache__"):
        (tree / name).mkdir(parents=True)
    made(tree, "clean")
    left = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_dir()}
    assert not left & {"dist", "build", "mutants", "hopsml/collective/lib", ".cache", "tests/__pycache__"}
    assert not (tree / ".venv").exists() and (ROOT / ".venv" / "bin").is_dir()
    assert (tree / "tools" / "hadoop").is_dir()


@pytest.mark.local
def test_bench_takes_its_options() -> None:
    refused = make(ROOT, "bench", "BENCH=--quick --rounds 0")
    assert refused.returncode and "--rounds 0: it must be 1 or more" in refused.stderr


@pytest.mark.local
@pytest.mark.variant
def test_lint_passes() -> None:
    assert "found nothing" in made(ROOT, "lint", timeout_s=880)


@pytest.mark.local
@pytest.mark.variant
@pytest.mark.skipif(not shutil.which("cargo"), reason="no Rust")
def test_tf_hdfs_builds_the_library() -> None:
    made(ROOT, "tf-hdfs", timeout_s=880)
    assert list((ROOT / "hopsml" / "training" / "tensorflow" / "lib").glob("*hdfs*"))


@pytest.mark.airflow
@pytest.mark.variant
def test_airflow_target_creates_its_environment() -> None:
    assert made(ROOT, "airflow", timeout_s=880).splitlines()[-1] == str(ROOT / ".cache/airflow/venv/bin/python")


@pytest.mark.tensorflow
@pytest.mark.variant
@pytest.mark.parametrize("study", STUDIES)
def test_studies_makes_a_picture(study: str, tmp_path: Path) -> None:
    made(ROOT, "studies", f"STUDIES={study} --quick --out {tmp_path}", timeout_s=880)
    assert {path.name for path in tmp_path.iterdir()} == {f"{study}.json", f"{study}.png"}


@pytest.mark.chaos
@pytest.mark.variant
def test_chaos_plays_a_scenario(tmp_path: Path) -> None:
    results = tmp_path / "chaos.json"
    parts = ["CHAOS_PARTS=local", "CHAOS_OVER=hopsml", f"CHAOS_RESULTS=--only scratch {results}"]
    assert '"failed": []' in made(ROOT, "chaos", *parts).splitlines()[-1]
    assert results.exists()


@pytest.mark.local
@pytest.mark.variant
def test_mutants_target_runs_one_module() -> None:
    assert "hopsml.storage.backoff" in made(ROOT, "mutants", "MUTANTS=hopsml.storage.backoff*", timeout_s=880)


@pytest.mark.hadoop
@pytest.mark.variant
def test_hadoop_up_and_down_start_and_stop_the_cluster(tree: Path, jars: Path) -> None:
    (tree / ".cache" / "hadoop").mkdir()
    (tree / ".cache" / "hadoop" / "jars").symlink_to(jars)
    try:
        assert "export HADOOP_CONF_DIR=" in made(tree, "hadoop-up")
        status = [tree / ".venv/bin/python", "-m", "tools.hadoop", "status"]
        shown = subprocess.run(status, cwd=tree, capture_output=True, text=True, check=True).stdout
        assert shown.count(" alive ") == 6 and shown.count(" RUNNING") == 2
    finally:
        assert "stopped after" in made(tree, "hadoop-down")
    assert not (tree / ".cache" / "hadoop" / "run" / "nn").exists()


@pytest.fixture
def jars() -> Path:
    """Return the folder of Hadoop's jars of this repository; fetch them if they are missing."""
    from tools.hadoop.jars import ensure_jars

    return ensure_jars()


@pytest.mark.local
@pytest.mark.variant
def test_release_builds_wheels_checksums_and_sbom(tmp_path: Path) -> None:
    """Built in the repository, so that downloaded headers and compiled objects serve the next run."""
    output = made(ROOT, "release", timeout_s=880)
    assert "auditwheel finds nothing newer than manylinux_2_28_x86_64" in output
    dist = ROOT / "dist"
    (linux,) = dist.glob("hopsml_spark-*.whl")  # as pages name it
    (pure,) = dist.rglob("hopsml_spark-*-py3-none-any.whl")
    assert linux.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    held = {Path(name).name for name in zipfile.ZipFile(linux).namelist()}
    operations = {f"libhopsml_tensorflow-{version[0]}.{version[1]}.so" for version in versions.TENSORFLOW.supported}
    assert {"libhopsml_collective.so", "libhopsml_server.so", "libhopsml_rows.so", *operations} <= held
    assert (JAR in held) is (shutil.which("javac") is not None)
    assert ("libhopsml_tf_hdfs.so" in held) is (shutil.which(os.environ.get("CARGO") or "cargo") is not None)
    assert not [name for name in zipfile.ZipFile(linux).namelist() if ".data/" in name and "scripts" not in name]
    assert not [name for name in zipfile.ZipFile(pure).namelist() if name.endswith(".so")]
    (sources,) = dist.glob("hopsml_spark-*.tar.gz")
    named = {line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()}
    assert {linux.name, str(pure.relative_to(dist)), sources.name, "hopsml-sbom.json"} <= named
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=dist, capture_output=True, text=True)
    assert checked.returncode == 0 and checked.stdout.count(": OK\n") == len(named), checked.stderr
    components = {one["name"] for one in json.loads((dist / "hopsml-sbom.json").read_text())["components"]}
    assert {"cloudpickle", "pyarrow"} <= components
    _build_from(sources, tmp_path)


def _build_from(sources: Path, folder: Path) -> None:
    """Build a wheel from a source distribution as pip does, but without optimization, to save time."""
    compiler = folder / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    compiler.chmod(0o755)
    command = [ROOT / ".venv/bin/uv", "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", folder]
    command += ["--python", ROOT / ".venv/bin/python", sources]
    subprocess.run(command, check=True, env={**os.environ, "CXX": str(compiler), "TMPDIR": str(folder)})
    (wheel,) = folder.glob("hopsml_spark-*.whl")
    held = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    assert {"libhopsml_collective.so", "libhopsml_server.so", "libhopsml_rows.so", "profiles.py"} <= held
    assert (JAR in held) is (shutil.which("javac") is not None)


@pytest.mark.spark
@pytest.mark.variant
def test_demo_trains_on_spark(tmp_path: Path) -> None:
    assert '"accuracy"' in made(ROOT, "demo", HOPSML_PROJECT_URL=f"file://{tmp_path}").splitlines()[-1]


@pytest.mark.hadoop
@pytest.mark.variant
@pytest.mark.parametrize("target", ["demo-yarn", "demo-service"])
def test_demo_runs_on_yarn(target: str) -> None:
    made(ROOT, target, timeout_s=880)
