"""``hopsml job``: what it prints, and its exit statuses."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from hopsml.service.spec import schema
from tests.cli.conftest import Cli
from tests.service.render.conftest import job_file
from tests.service.spec.examples import WHOLE

pytestmark = pytest.mark.fast
__all__ = ["job_file"]


def test_check(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(WHOLE)
    done = cli("job", "check", str(path))
    assert done.status == 0 and done.out.startswith("ok: digits: 2 tasks (train 2 to 8, evaluate 1), 3 to 9 slots"), (
        done
    )
    path.write_text("nmae: a\npriority: 0\n")
    done = cli("job", "check", str(path))
    assert done.status == 2 and not done.out
    assert [line.removeprefix(str(path)).split(":")[1:3] for line in done.err.splitlines()] == [
        *(["1", " name"], ["1", " tasks"], ["1", " nmae"], ["2", " priority"]),
    ]
    done = cli("job", "check", str(tmp_path / "no.yaml"))
    assert done.status == 2 and "it cannot be read: No such file or directory; name a job file" in done.err


def test_schema(cli: Cli) -> None:
    assert cli("job", "schema").out == schema.text() + "\n"


def test_render(cli: Cli, job_file: Path) -> None:
    done = cli("job", "render", str(job_file), "--to", "spark-submit", "--profile", "yarn-cluster")
    train, evaluate = map(shlex.split, done.out.splitlines())
    assert (train[-1], evaluate[-1]) == ("train", "evaluate") and train[2] == "yarn"
    done = cli("job", "render", str(job_file))  # the job's own profile
    assert "--deploy-mode client" in done.out
    done = cli("job", "render", str(job_file), "--to", "kubernetes")
    assert [one["kind"] for one in yaml.safe_load_all(done.out)] == [
        "ConfigMap",
        "SparkApplication",
        "SparkApplication",
    ]
    done = cli("job", "render", str(job_file), "--to", "slurm")
    assert done.status == 2 and "spark-submit" in done.err
    done = cli("job", "render", str(job_file), "--to", "kubernetes", "--profile", "yarn")
    assert done.status == 1 and "manifests are for k8s://" in done.err


def test_without_what_the_extra_brings(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = cli("job", "schema")
    assert done.status == 1 and "job files need pydantic, which is not installed: pip install" in done.err
