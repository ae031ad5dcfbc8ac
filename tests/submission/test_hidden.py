"""Tests that secrets and variables of drivers and executors are in no command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hopsml.errors import ArgumentError
from hopsml.submission import spark_command
from hopsml.submission.spark_submit import SparkSubmit

pytestmark = pytest.mark.fast

COMMAND = [
    "spark-submit", "--master", "yarn", "--conf", "spark.executor.memory=1g",
    "--conf", "spark.hadoop.fs.s3a.secret.key=s3cr3t", "--conf", "spark.yarn.appMasterEnv.LEVEL=s3cr3t too",
    "--conf", "spark.url=https://anna:s3cr3t@host",
    "job.py", "--conf", "spark.password=of-the-script",
]  # fmt: skip


def test_what_is_hidden_is_taken_out_and_nothing_else() -> None:
    line, settings = spark_command.split_command(COMMAND)
    assert line == [*COMMAND[:5], *COMMAND[-3:]]
    assert list(settings) == ["spark.hadoop.fs.s3a.secret.key", "spark.yarn.appMasterEnv.LEVEL", "spark.url"]
    assert settings["spark.yarn.appMasterEnv.LEVEL"] == "s3cr3t too"


def test_a_process_gets_what_its_arguments_do_not_show(tmp_path: Path) -> None:
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
        said = job.tail()
    assert said.splitlines() == [
        "0 True ['job.py', '--conf', 'spark.password=of-the-script']",
        "spark.hadoop.fs.s3a.secret.key=s3cr3t",
        "spark.yarn.appMasterEnv.LEVEL=s3cr3t too",
        "spark.url=https://anna:s3cr3t@host",
    ]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_properties_are_written_as_java_reads_them() -> None:
    written = spark_command.to_properties({"a b": "one\ntwo", "c:d": r" C:\x", "e": "ü=#!"}).decode()
    assert written == "a\\ b=one\\ntwo\nc\\:d=\\ C:\\\\x\ne=ü=#!\n"


def test_settings_in_the_variable_are_taken_once_and_handed_to_nobody() -> None:
    environment = {spark_command.HIDDEN_VARIABLE: '{"spark.password": "x", "n": 1}', "HOME": "/h"}
    assert spark_command.hidden_from_environment(environment) == {"spark.password": "x", "n": "1"}
    assert environment == {"HOME": "/h"} and spark_command.hidden_from_environment(environment) == {}
    with pytest.raises(ArgumentError, match="must hold JSON"):
        spark_command.hidden_from_environment({spark_command.HIDDEN_VARIABLE: "[1]"})
