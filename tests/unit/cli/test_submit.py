"""Tests of refusals and dry runs of ``hopsml submit``; tests/integration/yarn/test_submit.py uses a real YARN."""

from __future__ import annotations

import shlex
import sys
import traceback
from pathlib import Path

import pytest

from hopsml.core.settings import user_name
from hopsml.experiment import whole_script
from hopsml.submission import spark_command
from hopsml.submission.environment_archive import Environment
from tests.helpers.command_line import Cli

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a script, and the profiles ``here`` (no YARN) and ``there``."""
    for variable in (
        "PYSPARK_PYTHON",
        "HADOOP_CONF_DIR",
        "HADOOP_HOME",
        "HOPSML_PROJECT_URL",
        "HOPSML_PROJECT",
        "HOPSML_LEASE_S",
    ):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "here.yaml").write_text("master: local-cluster[2,1,512]\nspark: {spark.ui.enabled: false}\n")
    (tmp_path / "there.yaml").write_text(
        "master: yarn\ndeploy_mode: cluster\nstore: hdfs://ns1/Projects/p\nenvironment: {LEVEL: 3}\n"
        "spark: {spark.executor.memory: 1g, spark.yarn.tags: mine}\n"
    )
    monkeypatch.setenv("HOPSML_CONF_DIR", str(tmp_path))
    (tmp_path / "job.py").write_text("import yaml\n")
    return str(tmp_path / "job.py")


def test_worker_script_is_submitted_in_a_driver_that_runs_it_on_every_worker(cli: Cli, job: str) -> None:
    done = cli("submit", job, "--profile", "here", "--framework", "torch", "--dry-run", "--", "--epochs", "2")
    *_, driver, option, value = shlex.split(done.out)
    assert Path(driver).name == "job.py" and driver != job and (option, value) == ("--epochs", "2")
    done = cli("submit", job, "--profile", "here", "--framework", "mpi", "--dry-run")
    assert done.status == 1 and "--framework mpi: the framework must be one of torch, jax, distributed" in done.err
    for framework, backend, known in (("torch", "mpi", "auto, hopsml, gloo, nccl"), ("jax", "gloo", "auto")):
        options = ("--framework", framework, "--torch-backend", backend, "--dry-run")
        done = cli("submit", job, "--profile", "here", *options)
        assert (
            done.status == 1
            and f"--torch-backend {backend} of --framework {framework}: it must be one of {known}" in done.err
        )
    done = cli("submit", job, "--profile", "here", "--torch-backend", "gloo", "--dry-run")
    assert done.status == 1 and "--torch-backend gloo needs --framework torch" in done.err
    Path(job).write_text("def train(:\n")
    done = cli("submit", job, "--profile", "here", "--framework", "torch", "--dry-run")
    assert done.status == 1 and "job.py, line 1" in done.err


def test_driver_of_a_worker_script_has_its_text_outside_the_call(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "train.py").write_text("a = 1\nb = 2\n")
    driver = whole_script.write_driver("torch", tmp_path / "train.py", tmp_path / "made").read_text()
    (call,) = [line for line in driver.splitlines() if line.strip().startswith("run(")]
    assert "a = 1" in driver and "a = 1" not in call


def test_traceback_of_a_worker_script_has_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    with pytest.raises(ValueError, match="a broken shard") as failed:
        whole_script._as_main_module("train.py", "text = 'a broken shard'\nraise ValueError(text)\n", [])
    assert "    raise ValueError(text)" in "".join(traceback.format_exception(failed.value))


def test_script_of_a_profile_without_spark_is_run_locally(
    cli: Cli, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
    Path(job).write_text(
        "import os, sys\nopen('told', 'w').write(f\"{sys.argv[1:]} {os.environ['HOPSML_PROFILE']} "
        "{os.environ['HOPSML_LOCAL_SLOTS']}\")\nsys.exit(7)\n"
    )
    monkeypatch.chdir(tmp_path)
    done = cli("submit", job, "--profile", "local", "--num-workers", "3", "--epochs=2")
    assert done.status == 7 and (tmp_path / "told").read_text() == "['--epochs=2'] local 3", done.err
    refused = cli("submit", job, "--profile", "local", "--conf", "spark.executor.memory=1g")
    assert refused.status == 1 and "profile 'local' runs without Spark" in refused.err
    missing = cli("submit", "nothing.py", "--profile", "local")
    assert missing.status == 1 and "there is no script nothing.py" in missing.err


def test_number_of_workers_sets_the_executors_of_the_master(
    cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cli("submit", job, "--profile", "here", "--num-workers", "5", "--dry-run")
    assert shlex.split(done.out)[1:3] == ["--master", "local-cluster[5,1,512]"]
    assert shlex.split(cli("submit", job, "--profile", "here", "--dry-run").out)[2] == "local-cluster[2,1,512]"
    monkeypatch.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
    alone = ("submit", job, "--profile", "standalone", "--dry-run")
    assert settings(cli(*alone).out)["spark.cores.max"] == "2"
    assert settings(cli(*alone, "--num-workers", "5").out)["spark.cores.max"] == "5"
    assert (
        settings(cli(*alone, "--num-workers", "5", "--conf", "spark.executor.cores=4").out)["spark.cores.max"] == "20"
    )


def settings(out: str) -> dict[str, str]:
    """Return the Spark settings of a printed command."""
    words = shlex.split(out)
    return dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--conf")


def test_dry_run_prints_the_complete_command(cli: Cli, job: str) -> None:
    done = cli(
        "submit", job, "--profile", "there", "--num-workers=8", "--conf=spark.executor.memory=2g", "--dry-run", "a b"
    )
    assert done.status == 0, done.err
    words = shlex.split(done.out)
    assert words[0].endswith("spark-submit") and words[1:5] == ["--master", "yarn", "--deploy-mode", "cluster"]
    assert words[-2:] == [job, "a b"]
    known = settings(done.out)
    assert known.pop("spark.yarn.tags").startswith("mine,hopsml-")
    assert known == {
        "spark.executor.memory": "2g",
        "spark.executor.instances": "8",
        "spark.yarn.appMasterEnv.LEVEL": "3",
        "spark.yarn.appMasterEnv.HOPSML_PROJECT_URL": "hdfs://ns1/Projects/p",
        "spark.yarn.submit.waitAppCompletion": "false",
    }


@pytest.mark.parametrize(
    ("profile", "master", "workers"),
    [
        ("yarn", "yarn", "spark.executor.instances"),
        ("yarn-cluster", "yarn", "spark.executor.instances"),
        ("yarn-secure", "yarn", "spark.executor.instances"),
        ("yarn-cluster-secure", "yarn", "spark.executor.instances"),
        ("yarn-dynamic", "yarn", "spark.dynamicAllocation.maxExecutors"),
        ("kubernetes", "k8s://https://kubernetes.default.svc", "spark.dynamicAllocation.maxExecutors"),
    ],
)
def test_each_cluster_profile_builds_its_command(
    cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch, profile: str, master: str, workers: str
) -> None:
    monkeypatch.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
    done = cli("submit", job, "--profile", profile, "--num-workers", "3", "--dry-run", "--epochs=2")
    assert done.status == 0, done.err
    words, known = shlex.split(done.out), settings(done.out)
    assert words[1:3] == ["--master", master] and words[-2:] == [job, "--epochs=2"]
    assert known[workers] == "3" and known["spark.decommission.enabled"] == "true"
    dynamic = known.get("spark.dynamicAllocation.enabled") == "true"
    assert dynamic == (known.get("spark.dynamicAllocation.shuffleTracking.enabled") == "true")
    assert not dynamic or known.get("spark.executor.instances", "0") == "0"


@pytest.mark.parametrize("profile", ["emr", "dataproc", "cdp"])
def test_profile_of_a_distribution_overrides_its_defaults(
    cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    monkeypatch.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
    monkeypatch.setenv("HOPSML_PROJECT_URL", "hdfs://ns1/Projects/p")
    done = cli("submit", job, "--profile", profile, "--num-workers", "3", "--dry-run")
    assert done.status == 0, done.err
    words, known = shlex.split(done.out), settings(done.out)
    assert words[1:5] == ["--master", "yarn", "--deploy-mode", "cluster"]
    assert known["spark.dynamicAllocation.enabled"] == "false" and known["spark.executor.instances"] == "3"
    assert known["spark.executor.resource.gpu.amount"] == "0" and known["spark.yarn.maxAppAttempts"] == "2"
    assert known["spark.yarn.dist.archives"].startswith("hdfs://ns1/Projects/p/environments/")
    secure = {known.get(f"spark.{key}") for key in ("authenticate", "network.crypto.enabled", "io.encryption.enabled")}
    assert secure == ({"true"} if profile == "cdp" else {None})


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["--epochs", "3"], ["--epochs", "3"]),
        (
            ["--epochs=3", "data", "-v", "--num-workers", "4", "--lr", "-0.1"],
            ["--epochs=3", "data", "-v", "--lr", "-0.1"],
        ),
        (["--num-workers", "4", "--", "--num-worker", "3", "--dry-run"], ["--num-worker", "3", "--dry-run"]),
        (["--config", "a.json"], ["--config", "a.json"]),
    ],
)
def test_options_of_the_script_are_passed_on(cli: Cli, job: str, arguments: list[str], passed: list[str]) -> None:
    done = cli("submit", "--profile", "here", "--dry-run", job, *arguments)
    assert done.status == 0, done.err
    words = shlex.split(done.out)
    assert words[words.index(job) + 1 :] == passed
    assert settings(done.out).get("spark.executor.instances") == ("4" if "--num-workers" in arguments else None)


@pytest.mark.parametrize(
    ("option", "meant"),
    [("--num-worker", "--num-workers"), ("--num_workers=3", "--num-workers"), ("--dryrun", "--dry-run")],
)
def test_misspelt_option_is_not_passed_to_the_script(cli: Cli, job: str, option: str, meant: str) -> None:
    done = cli("submit", job, "--profile", "here", option, "3")
    assert done.status == 1 and done.out == ""
    assert f"there is no option {option.partition('=')[0]}; did you mean {meant}?" in done.err and " -- " in done.err


def test_dry_run_names_the_environment_archive_and_packs_nothing(
    cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = cli("submit", job, "--profile", "there", "--ship-environment", "auto", "--dry-run", "--tag", "t1")
    known = settings(done.out)
    url = f"hdfs://ns1/Projects/p/environments/{user_name()}/{Environment.current().hash}.tar.gz"
    assert known["spark.yarn.dist.archives"] == f"{url}#environment"
    assert known["spark.yarn.tags"].endswith(",t1")
    assert "packing" not in done.err


def test_default_profile_without_spark_names_the_local_one(cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(spark_command, "find_spec", lambda name: None)
    done = cli("submit", job)
    assert done.status == 1 and "spark-submit was not found" in done.err and "--profile local" in done.err


def test_project_url_is_passed_to_a_driver_in_a_container(cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", "hdfs://ns2/elsewhere")
    known = settings(cli("submit", job, "--profile", "there", "--dry-run").out)
    assert known["spark.yarn.appMasterEnv.HOPSML_PROJECT_URL"] == "hdfs://ns2/elsewhere"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--profile", "nowhere"], "profile 'nowhere' is unknown; the known profiles are here, there"),
        (["--profile", "there", "--conf", "x"], "--conf x: a Spark setting must be key=value"),
        (["--profile", "there", "--timeout", "0"], "--timeout 0: the timeout must be greater than 0"),
        (["--profile", "there"], "profile 'there' runs on YARN, and no ResourceManager is configured"),
        (["--profile", "there"], "yarn-site.xml; `hopsml submit --profile local` runs a script on this machine"),
        (
            ["--profile", "here", "--detach"],
            "profile 'here' (master local-cluster[2,1,512], client mode) does not run its driver on YARN",
        ),
        (
            ["--profile", "here", "--ship-environment", "always"],
            "environments can be shipped to the nodes of YARN only",
        ),
        (
            ["--profile", "here", "--py-files", "nope.py", "--dry-run"],
            "nope.py of --py-files (spark.submit.pyFiles) does",
        ),
        (["--profile", "here", "--conf", "spark.submit.pyFiles=no.zip", "--dry-run"], "no.zip of --py-files"),
    ],
)
def test_invalid_options_are_refused_before_the_start(cli: Cli, job: str, options: list[str], words: str) -> None:
    done = cli("submit", job, *options)
    assert done.status == 1 and words in done.err and done.out == ""


def test_environment_variable_selects_the_profile(cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROFILE", "here")
    assert "--master 'local-cluster" in cli("submit", job, "--dry-run").out
    assert "--master yarn" in cli("submit", job, "--profile", "there", "--dry-run").out


def test_files_on_a_store_are_not_checked(cli: Cli, job: str) -> None:
    files = f"hdfs://ns1/all.zip,local:/opt/here.zip,file://{job}"
    done = cli("submit", job, "--profile", "there", "--py-files", files, "--dry-run")
    assert done.status == 0 and files in done.out


def test_syntax_error_and_missing_package_are_reported_before_the_submission(cli: Cli, job: str) -> None:
    Path(job).write_text("x = 1\nprint('a'\n")
    assert f"{job}, line 2: '(' was never closed; nothing was submitted" in cli("submit", job, "--profile", "here").err
    Path(job).write_text("def train():\n    import lightgbm\n")
    done = cli("submit", job, "--profile", "there", "--ship-environment", "auto")
    assert done.status == 1 and "environment archive lacks lightgbm (line 2); pip install" in done.err
    done = cli("submit", job, "--profile", "here")
    assert f"environment of {sys.executable} lacks lightgbm" in done.err


def test_follow_refuses_an_id_that_is_not_of_an_application(
    cli: Cli, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = "<property><name>yarn.resourcemanager.hostname</name><value>127.0.0.1</value></property>"
    (tmp_path / "yarn-site.xml").write_text(f"<configuration>{entry}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    done = cli("runs", "follow", "job_1")
    assert done.status == 1 and "'job_1' is neither the id of a YARN application" in done.err


@pytest.mark.parametrize(("profile", "mode"), [("yarn-secure", "client"), ("yarn-cluster-secure", "cluster")])
def test_profiles_of_secure_clusters_encrypt_and_name_no_keytab(
    cli: Cli, job: str, monkeypatch: pytest.MonkeyPatch, profile: str, mode: str
) -> None:
    monkeypatch.setenv("HOPSML_CONF_DIR", str(ROOT / "conf"))
    done = cli("submit", job, "--profile", profile, "--dry-run")
    assert done.status == 0, done.err
    words, known = shlex.split(done.out), settings(done.out)
    assert words[words.index("--deploy-mode") + 1] == mode
    encrypted = ("spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled")
    assert [known[key] for key in encrypted] == ["true"] * 3
    assert "keytab" not in done.out
