"""Tests of the spark-submit command lines of a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hopsml.core import profiles
from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError
from hopsml.service import spec
from hopsml.service.driver import SCRIPT
from hopsml.service.render import spark_submit

pytestmark = pytest.mark.fast


def lines(job_file: Path, profile: str | Profile) -> dict[str, list[str]]:
    """Return the command line of each task."""
    chosen = profiles.load(profile) if isinstance(profile, str) else profile
    return {
        name: list(one.command)
        for name, one in spark_submit.submission_plans(spec.load(job_file), job_file, chosen).items()
    }


def conf(line: list[str]) -> dict[str, str]:
    """Return the Spark settings of a command line."""
    pairs = [line[at + 1] for at, word in enumerate(line) if word == "--conf"]
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def without(job_file: Path, *parts: str) -> Path:
    """Remove parts of the job file's text."""
    text = job_file.read_text()
    for part in parts:
        assert part in text
        text = text.replace(part, "")
    job_file.write_text(text)
    return job_file


def test_yarn_task_is_an_application_with_executors_of_its_size(job_file: Path) -> None:
    found = lines(job_file, "yarn-cluster")
    train, evaluate = conf(found["train"]), conf(found["evaluate"])
    assert found["train"][1:5] == ["--master", "yarn", "--deploy-mode", "cluster"]
    assert found["train"][-3:] == [str(SCRIPT), str(job_file), "train"]
    wanted = {
        "spark.app.name": "digits-train",
        "spark.executor.instances": "8",
        "spark.executor.cores": "4",
        "spark.task.cpus": "4",
        "spark.executor.memory": "1024m",
        "spark.executor.memoryOverhead": "15360m",
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
        "spark.yarn.queue": "research",
        "spark.yarn.priority": "80",
        "spark.yarn.executor.nodeLabelExpression": "v100",
        "spark.executorEnv.YARN_CONTAINER_RUNTIME_TYPE": "docker",
        "spark.executorEnv.YARN_CONTAINER_RUNTIME_DOCKER_IMAGE": "hopsml:1",
        "spark.submit.pyFiles": str(job_file.with_name("train.py")),
    }
    assert {key: train.get(key) for key in wanted} == wanted
    travels = train["spark.yarn.dist.files"].split(",")
    assert travels[1:] == [str(job_file), str(job_file.with_name("train.py"))] and travels[0].endswith(
        "discover_gpus.py"
    )
    assert evaluate["spark.executor.resource.gpu.amount"] == "0" and "spark.task.resource.gpu.amount" not in evaluate
    assert evaluate["spark.yarn.dist.files"].endswith(str(job_file.with_name("evaluate.py")))
    assert not any("nodeLabel" in key or "DOCKER" in key for key in evaluate)


def test_local_profile_renders_commands_without_spark(job_file: Path) -> None:
    without(job_file, '    environment: {image: "hopsml:1"}\n')
    assert lines(job_file, "local") == {
        name: [
            *("/usr/bin/env", "HOPSML_PROFILE=local", f"HOPSML_LOCAL_SLOTS={most}"),
            *(sys.executable, str(SCRIPT), str(job_file), name),
        ]
        for name, most in (("train", 8), ("evaluate", 1))
    }


def test_standalone_and_local_cluster_profiles_render_the_same_job(job_file: Path) -> None:
    without(job_file, '    environment: {image: "hopsml:1"}\n', ", node_label: v100")
    found = lines(job_file, "standalone")
    assert found["train"][2] == "spark://127.0.0.1:7077" and conf(found["train"])["spark.cores.max"] == "32"
    assert "spark.yarn.queue" not in conf(found["train"])
    found = lines(job_file, "local-cluster")
    assert found["train"][2] == "local-cluster[8,4,16384]" and found["evaluate"][2] == "local-cluster[1,1,4096]"


def test_packed_environment_is_sent_with_the_application(job_file: Path) -> None:
    job_file.write_text(job_file.read_text().replace('image: "hopsml:1"', "archive: file:///e/torch.tar.gz"))
    found = conf(lines(job_file, "yarn-cluster")["train"])
    assert found["spark.yarn.dist.archives"] == "file:///e/torch.tar.gz#environment"
    assert found["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == "./environment/bin/python"


@pytest.mark.parametrize(
    ("old", "new", "profile", "words"),
    [
        (", node_label: v100", "", "standalone", "environment.image hopsml:1: profile 'standalone' (master spark://127.0.0.1:7077)"),
        ('image: "hopsml:1"', "packages: r.txt", "standalone", "node_label v100: profile 'standalone'"),
        ("main\n", "mian\n", "yarn", "train.py has no function mian; there are: main"),
        ("train.py:", "tarin.py:", "yarn", "there is no script"),
        ("memory: 4g", "memory: 1000m", "yarn", "memory 1000m: half of it is the executor's heap, and Spark"),
        ("code: .", "code: src", "yarn", "code src: there is no folder"),
        ("code: .", "code: /no/src", "yarn", "the folder that tasks share is named by workspace next to code"),
        ("code: .", "workspace: src", "yarn", "code src: there is no folder"),
        ("code: .", "code: src.zip", "yarn", "it is not on this machine as a folder; `hopsml jobs submit` unpacks it"),
        ("code: .", "code: 'https://git/x'", "yarn", "code https://git/x: it is not on this machine as a folder"),
        ("code: .", "code: .\nworkspace: /w", "yarn", "workspace: /w is a path of one machine, and workers of profile yarn"),
        ("code: .", "datasets: {a: /d}", "yarn", "datasets.a: /d is a path of one machine"),
    ],
)  # fmt: skip
def test_job_that_cannot_be_rendered_is_refused(job_file: Path, old: str, new: str, profile: str, words: str) -> None:
    job_file.write_text(job_file.read_text().replace(old, new))
    with pytest.raises(ArgumentError) as refused:
        lines(job_file, profile)
    assert words in str(refused.value)


def test_syntax_error_in_the_code_is_reported_before_the_start(job_file: Path) -> None:
    job_file.with_name("train.py").write_text("def main(:\n")
    with pytest.raises(ArgumentError, match=r"train\.py, line 1"):
        lines(job_file, "yarn-cluster")
