"""Tests of spark-submit's command line: what the script imports is checked, and no secret or variable is in it."""

from __future__ import annotations

import ast
import os
import sys
import zipfile
from pathlib import Path

import pytest

from hopsml import submission
from hopsml.core import profiles
from hopsml.errors import ArgumentError
from hopsml.submission import script, spark_command
from hopsml.submission.spark_submit import SparkSubmit

COMMAND = [
    "spark-submit", "--master", "yarn", "--conf", "spark.executor.memory=1g",
    "--conf", "spark.hadoop.fs.s3a.secret.key=s3cr3t", "--conf", "spark.yarn.appMasterEnv.LEVEL=s3cr3t too",
    "--conf", "spark.url=https://anna:s3cr3t@host", "--conf", "spark.kerberos.keytab=/home/anna/s3cr3t.keytab",
    "job.py", "--conf", "spark.password=of-the-script",
]  # fmt: skip


KEYTAB = "spark.kerberos.keytab"


def test_secret_settings_are_removed_from_the_command_line() -> None:
    line, settings = spark_command.split_command(COMMAND)
    assert line == [*COMMAND[:5], *COMMAND[-3:]]
    assert list(settings) == ["spark.hadoop.fs.s3a.secret.key", "spark.yarn.appMasterEnv.LEVEL", "spark.url", KEYTAB]
    assert settings["spark.yarn.appMasterEnv.LEVEL"] == "s3cr3t too"


def test_process_receives_settings_that_its_arguments_do_not_show(tmp_path: Path) -> None:
    program = tmp_path / "spark-submit"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nline = open('/proc/self/cmdline').read()\n"
        "at = sys.argv.index('--properties-file')\n"
        "for _ in range(2):\n    content = open(sys.argv[at + 1]).read()\n"  # spark-submit reads it twice
        "print(line.count('s3cr3t'), '--load-spark-defaults' in sys.argv, sys.argv[-3:])\nprint(content)\n"
    )
    program.chmod(0o755)
    before = sorted(os.listdir("/proc/self/fd"))
    with SparkSubmit([str(program), *COMMAND[1:]], os.environ, quiet=True) as job:
        while job.poll() is None:
            os.sched_yield()
        output = job.output_tail()
    assert output.splitlines() == [
        "0 True ['job.py', '--conf', 'spark.password=of-the-script']",
        "spark.hadoop.fs.s3a.secret.key=s3cr3t",
        "spark.yarn.appMasterEnv.LEVEL=s3cr3t too",
        "spark.url=https://anna:s3cr3t@host",
        "spark.kerberos.keytab=/home/anna/s3cr3t.keytab",
    ]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_properties_are_escaped_for_java() -> None:
    written = spark_command.to_properties({"a b": "one\ntwo", "c:d": r" C:\x", "e": "ü=#!"}).decode()
    assert written == "a\\ b=one\\ntwo\nc\\:d=\\ C:\\\\x\ne=ü=#!\n"


def test_settings_in_the_variable_are_taken_once_and_removed() -> None:
    environment = {spark_command.HIDDEN_VARIABLE: '{"spark.password": "x", "n": 1}', "HOME": "/h"}
    assert spark_command.pop_hidden_settings(environment) == {"spark.password": "x", "n": "1"}
    assert environment == {"HOME": "/h"} and spark_command.pop_hidden_settings(environment) == {}
    with pytest.raises(ArgumentError, match="must contain a JSON object"):
        spark_command.pop_hidden_settings({spark_command.HIDDEN_VARIABLE: "[1]"})


pytestmark = pytest.mark.fast

YARN = profiles.parse("y", "master: yarn\ndeploy_mode: cluster\n", "y.yaml")

SCRIPT = """
import os, numpy.linalg as la
from typing import TYPE_CHECKING
from . import sibling
if TYPE_CHECKING:
    import only_for_types
try:
    import maybe
except ImportError:
    import instead
try:
    import strict
except ValueError:
    pass
try:
    import either
except (KeyError, ModuleNotFoundError):
    either = None
def train():
    from lightgbm.sklearn import LGBMClassifier
    class Inner:
        import deep
"""


def test_unconditional_imports_of_a_script_are_found() -> None:
    assert script.imported_names(ast.parse(SCRIPT)) == {
        "os": 2,
        "numpy": 2,
        "typing": 3,
        "strict": 12,
        "lightgbm": 20,
        "deep": 22,
    }


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "helpers.py").write_text("")
    file = tmp_path / "job.py"
    file.write_text("import yaml, pyspark, helpers\ndef train():\n    import no_such_package\n")
    return file


@pytest.fixture(autouse=True)
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_missing_module_is_named_with_its_line(job: Path) -> None:
    with pytest.raises(ArgumentError, match=r"lacks helpers \(line 1\), no_such_package \(line 3\); pip install"):
        submission.build_command(YARN, str(job))


def test_shipped_module_is_not_missing(job: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as content:
        content.writestr("no_such_package/__init__.py", "")
    files = f"{tmp_path}/helpers.py, file://{tmp_path}/more.zip"
    assert str(job) in submission.build_command(YARN, str(job), conf={"spark.submit.pyFiles": files})
    path = tmp_path / "path"
    (path / "no_such_package").mkdir(parents=True)
    conf = {"spark.submit.pyFiles": f"{tmp_path}/helpers.py", "spark.executorEnv.PYTHONPATH": str(path)}
    assert str(job) in submission.build_command(YARN, str(job), conf=conf)


def test_modules_next_to_the_script_are_found_by_a_local_driver(job: Path) -> None:
    here = profiles.parse("h", "master: yarn\n", "h.yaml")
    with pytest.raises(ArgumentError, match=r"lacks no_such_package \(line 3\);"):
        submission.build_command(here, str(job))


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.pyspark.python": "/opt/other/bin/python"},
        {"spark.submit.pyFiles": "hdfs://ns1/all.zip"},
    ],
)
def test_imports_are_not_checked_for_an_unknown_python(job: Path, conf: dict[str, str]) -> None:
    assert str(job) in submission.build_command(YARN, str(job), conf=conf)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"def f(:\n", "line 1: invalid syntax"), (b"x = 1\n\x00", "null bytes"), (b"x = '\xff'\n", "utf-8")],
)
def test_invalid_or_missing_script_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(content)
    with pytest.raises(ArgumentError, match=f"job.py.*{words}.*nothing was submitted"):
        submission.build_command(YARN, str(file))
    with pytest.raises(ArgumentError, match=r"there is no script .*other\.py"):
        submission.build_command(YARN, str(tmp_path / "other.py"))


@pytest.mark.parametrize("configured", ["conf", "SPARK_CONF_DIR"])
def test_spark_3_defaults_are_overridden_by_hidden_settings(tmp_path: Path, configured: str) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.9.jar").touch()
    folder = tmp_path / configured
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text("spark.local.dir /big\nspark.url=by default")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "spark-submit"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nat = sys.argv.index('--properties-file')\n"
        "print('--load-spark-defaults' in sys.argv)\nprint(open(sys.argv[at + 1]).read())\n"
    )
    program.chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    if configured != "conf":
        variables[configured] = str(folder)
    with SparkSubmit([str(program), *COMMAND[1:]], variables, quiet=True) as job:
        while job.poll() is None:
            os.sched_yield()
        lines = job.output_tail().splitlines()
    assert lines[:3] == ["False", "spark.local.dir /big", "spark.url=by default"]
    assert lines[-2:] == ["spark.url=https://anna:s3cr3t@host", f"{KEYTAB}=/home/anna/s3cr3t.keytab"]


def test_spark_home_takes_precedence_over_the_program_path(tmp_path: Path) -> None:
    for home, jar in (("three", "spark-core_2.13-3.4.4.jar"), ("four", "spark-core_2.13-4.1.0.jar")):
        (tmp_path / home / "jars").mkdir(parents=True)
        (tmp_path / home / "jars" / jar).touch()
    program = str(tmp_path / "four" / "bin" / "spark-submit")
    assert spark_command.read_spark_defaults(program, {}) == (b"", ["--load-spark-defaults"])
    assert spark_command.read_spark_defaults(program, {"SPARK_HOME": str(tmp_path / "three")}) == (b"", [])


@pytest.mark.parametrize(
    "name",
    [
        *(
            "HOPSML_PROJECT",
            "HOPSML_STORAGE_TIMEOUT_S",
            "HOPSML_STORAGE_RETRY_S",
            "HOPSML_TOKEN_KINDS",
            "HOPSML_CA_BUNDLE",
        ),
        *("HOPSML_TRACEBACK", "HOPSML_ANY_VERSION"),
    ],
)
def test_callers_variable_reaches_a_driver_in_a_container(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"master: yarn\ndeploy_mode: cluster\nenvironment:\n  {name}: of-profile\n"
    profile = profiles.parse("there", text, "there.yaml")
    key = f"spark.yarn.appMasterEnv.{name}"
    monkeypatch.delenv(name, raising=False)
    assert spark_command.spark_settings(profile)[key] == "of-profile"
    monkeypatch.setenv(name, "of-shell")
    assert spark_command.spark_settings(profile)[key] == "of-shell"
    assert spark_command.spark_settings(profile, conf={key: "of-call"})[key] == "of-call"
