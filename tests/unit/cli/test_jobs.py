"""``hopsml jobs``: what it prints, and its exit statuses."""

from __future__ import annotations

import shlex
import zipfile
from pathlib import Path

import pytest
import yaml

from hopsml.cli import service_jobs
from hopsml.service.spec import loading
from tests.helpers.command_line import Cli
from tests.unit.service.render.conftest import job_file
from tests.unit.service.spec.examples import WHOLE

pytestmark = pytest.mark.fast
__all__ = ["job_file"]


def test_check_summarizes_a_valid_job_file_and_lists_problems_of_another(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(WHOLE)
    (tmp_path / "train.py").write_text("def main(**arguments): ...\n")
    done = cli("jobs", "check", str(path))
    assert done.status == 0 and done.out.startswith("ok: digits: 2 tasks (train 2 to 8, evaluate 1), 3 to 9 slots"), (
        done
    )
    path.write_text("nmae: a\npriority: 0\n")
    done = cli("jobs", "check", str(path))
    assert done.status == 2 and not done.out
    assert [line.removeprefix(str(path)).split(":")[1:3] for line in done.err.splitlines()] == [
        *(["1", " name"], ["1", " tasks"], ["1", " nmae"], ["2", " priority"]),
    ]
    done = cli("jobs", "check", str(tmp_path / "no.yaml"))
    assert done.status == 2 and "it cannot be read: No such file or directory; name a job file" in done.err


def test_check_reports_a_missing_workspace_file_or_function(cli: Cli, tmp_path: Path) -> None:
    path, start = tmp_path / "job.yaml", "name: a\ntasks: {train: {function: "
    for content, message in (
        (f"{start}train.py:main}}}}", "tasks.train.function: there is no file 'train.py' in the code"),
        (f"{start}other.py:mian}}}}", "tasks.train.function: other.py has no function 'mian'"),
        (f"{start}other.py:main}}}}\ncode: src\n", f"code src: there is no folder {tmp_path / 'src'}"),
        (f"{start}other.py:main}}}}\nworkspace: src\n", f"code src: there is no folder {tmp_path / 'src'}"),
        (f"{start}other.py:main}}}}\ncode: code.zip\n", f"code code.zip: there is no file {tmp_path / 'code.zip'}"),
    ):
        path.write_text(content)
        (tmp_path / "other.py").write_text("def main(): ...\n")
        done = cli("jobs", "check", str(path))
        assert done.status == 2 and not done.out and done.err.startswith(f"{path}: {message}"), done


def test_check_reads_the_code_of_a_zip(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.writestr("src/train.py", "def main(): ...\n")
    for function, status in (("src/train.py:main", 0), ("src/train.py:mian", 2), ("train.py:main", 2)):
        path.write_text(f"name: a\ntasks: {{train: {{function: {function}}}}}\ncode: code.zip\n")
        assert cli("jobs", "check", str(path)).status == status, function


def test_token_lifetime_of_zero_or_less_is_refused(cli: Cli) -> None:
    for days in ("0", "-3"):
        done = cli("tokens", "create", "eve", "--days", days)
        assert done.status == 2 and "--days must be above 0; omit it for a token that does" in " ".join(
            done.err.replace("│", " ").split()
        )


def test_schema_command_prints_the_schema(cli: Cli) -> None:
    assert cli("jobs", "schema").out == loading.schema_text() + "\n"


def test_render_prints_commands_or_manifests(cli: Cli, job_file: Path) -> None:
    done = cli("jobs", "render", str(job_file), "--to", "spark-submit", "--profile", "yarn-cluster")
    train, evaluate = map(shlex.split, done.out.splitlines())
    assert (train[-1], evaluate[-1]) == ("train", "evaluate") and train[2] == "yarn"
    done = cli("jobs", "render", str(job_file))  # the job's own profile
    assert "--deploy-mode client" in done.out
    done = cli("jobs", "render", str(job_file), "--to", "kubernetes")
    assert [one["kind"] for one in yaml.safe_load_all(done.out)] == [
        "ConfigMap",
        "SparkApplication",
        "SparkApplication",
    ]
    done = cli("jobs", "render", str(job_file), "--to", "slurm")
    assert done.status == 2 and "spark-submit" in done.err
    done = cli("jobs", "render", str(job_file), "--to", "kubernetes", "--profile", "yarn")
    assert done.status == 1 and "manifests are for k8s://" in done.err


def test_missing_extra_is_explained(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = cli("jobs", "schema")
    assert done.status == 1 and "job files need pydantic, which is not installed; pip install" in done.err


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "train.pyy",
            "train.pyy: the name of a script must end in .py. For other programs write a job file with command:",
        ),
        ("trian.py", "there is no script trian.py; did you mean train.py?"),
        ("no/train.py", "there is no script no/train.py; give the path of an existing script"),
        (".", ". is a folder; give a script in it, such as ./train.py"),
        ("", "is a folder; give a script in it"),
        ("train.py:", "train.py:: the text after the colon must be the name of a function, as in train.py:main"),
        ("train.py:a b", "the text after the colon must be the name of a function"),
        ("train.py --name A_b", "a name has 1 to 63 lower-case letters"),
    ],
)
def test_invalid_script_of_a_job_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("HOPSML_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("HOPSML_TOKEN", "x")
    done = cli("jobs", "run", script.partition(" --")[0], *_options(script))
    assert done.status == 1 and words in done.err and "job.yaml" not in done.err and not done.out, done


def _options(line: str) -> list[str]:
    _, found, rest = line.partition(" --")
    return f"--{rest}".split() if found else []


def test_empty_idempotency_key_is_refused(cli: Cli) -> None:
    done = cli("jobs", "submit", "job.yaml", "--key", "")
    assert done.status == 2 and "--key is empty" in done.err


@pytest.mark.parametrize(
    "line",
    ["ls --limit 0", "ls --limit -3", "run train.py --workers 0", "run train.py --gpus -1", "run train.py --cores 0",
     "run train.py --priority 101", "move 1 --priority 0"],
)  # fmt: skip
def test_number_out_of_its_range_is_a_usage_error(cli: Cli, line: str) -> None:
    done = cli("jobs", *line.split())
    option = line.split()[-2]
    assert done.status == 2 and option in done.err and "Input should be" in done.err, done


def test_follow_and_try_cannot_be_combined(cli: Cli) -> None:
    done = cli("jobs", "logs", "1", "-f", "--try", "1")
    assert done.status == 2 and "--follow prints the newest try" in done.err


@pytest.mark.parametrize(
    ("why", "known", "is_new"),
    [
        ("", "", False),
        ("needs 1 slot; one-1 holds 2", "", True),
        ("needs 1 slot; starts in 40 s", "needs 1 slot; starts in 45 s", False),
        ("needs 1 slot; two-2 holds it", "needs 1 slot; one-1 holds it", True),
        ("", "needs 1 slot", False),
    ],
)
def test_reason_to_wait_is_printed_once(why: str, known: str, is_new: bool) -> None:
    assert service_jobs.is_new_reason(why, known) is is_new
