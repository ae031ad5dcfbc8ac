"""Tests that run each Python snippet of the pages after its preamble in ``preambles.py``."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.clock import END_S
from tests.helpers.pages import ROOT, snippet, snippets, users_pages
from tests.integration.docs import preambles

RUN_ID = "app-20261120-0001_1"  # as the pages call it
COMMUNICATION = "docs/communication.md"
AIRFLOW, ELASTIC, NOTEBOOK = "docs/how-to/airflow.md", "docs/how-to/elastic.md", "docs/how-to/notebook.md"
SERVERS, DYNAMIC = "docs/how-to/parameter-servers.md", "docs/how-to/dynamic.md"
ALGORITHMS = "docs/how-to/algorithms.md"
LOCAL_SERVICE, CLIENT = "docs/how-to/local-service.md", "docs/reference/client.md"
DATA, FIRST, FRAMEWORKS, MODELS, RUNS, SEARCH, SERVING, STORAGE = (
    "docs/how-to/data.md",
    "docs/first-steps.md",
    *(f"docs/how-to/{name}.md" for name in ("frameworks", "models", "runs", "search", "serving", "storage")),
)
TESTED = {  # page -> words of each of its snippets
    "README.md": ("▶ import hopsml", "%load_ext", "HopsMLOperator(", "experiment.evaluate("),
    "docs/index.md": ("loss *= 1 - lr",),
    FIRST: ("loss *= 1 - lr", "keras.Sequential("),
    RUNS: ("experiment.resume(", "experiment.recorded(", "EarlyStopping(", "hopsml.load_checkpoint("),
    "docs/how-to/gpus.md": ("set_memory_growth(",),
    ELASTIC: ("state.resume(",),
    DATA: (
        "def train(clicks)",
        "hopsml.data.parquet(",
        "hopsml.data.files(",
    ),  # the first: integration/spark/test_data.py
    "docs/how-to/large-batch.md": ("large.Recipe(", "recomputed_statistics(", "BatchSizeSchedule.doubling("),
    FRAMEWORKS: ("hopsml.torch.prepare(", "lightning.Trainer(", "TrainingArguments(", "Accelerator(", "RabitTracker("),
    SEARCH: ("Searchspace(", "stopper_args=", 'framework="torch"'),
    MODELS: ("LogisticRegression()", "to_onnx(", "hopsml.model.set_alias(", "hopsml.model.predict("),
    NOTEBOOK: ("%load_ext", "PYSPARK_PYTHON"),
    AIRFLOW: ("HopsMLOperator(",),
    SERVING: ("serving.canary(",),
    STORAGE: (
        "hdfs.dump(",
        "tf.io.gfile.glob(",
        "except ResultsNotStored",
    ),  # the second: integration/yarn/test_tf_hdfs.py
    COMMUNICATION: ("hopsml.all_reduce(",),
    SERVERS: ("ServerLoop(",),
    ALGORITHMS: ("tensorflow.TrainingLoop(", "torch.TrainingLoop("),
    "docs/reference/job.md": ("hopsml.job.addresses(",),  # integration/service/test_job_parts.py
    LOCAL_SERVICE: ("experiment.distributed(",),
    CLIENT: ("client.submit(", "client.clone("),
    DYNAMIC: ("def alternating(", "def adversarial(", "def growing(", "def sequences(", "def actors_and_a_learner("),
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two slots of this machine, and a project."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "local.yaml").write_text("master: none\nlocal_slots: 2\n")
    return tmp_path


def run(home: Path, script: str, **more: str) -> str:
    """Run a script in a subprocess and return its output; all its child processes are ended."""
    (home / "script.py").write_text(script)
    environment = {name: value for name, value in os.environ.items() if name not in ("HOPSML_PROFILE", "TF_CONFIG")}
    environment |= {"HOPSML_CONF_DIR": str(home / "conf"), "HOPSML_PROJECT_URL": f"file://{home}/project", **more}
    environment |= {"PYTHONPATH": str(ROOT), "HOPSML_MLFLOW": "0"}
    ended = subprocess.run(
        [sys.executable, str(home / "script.py")], env=environment, cwd=home, capture_output=True, timeout=END_S
    )
    printed = ended.stdout.decode() + ended.stderr.decode()
    assert ended.returncode == 0, printed
    return printed


def recorded_run(home: Path) -> None:
    """Create a failed run under the id that the pages use, so that examples can continue it."""
    script = (
        preambles.DAILY
        + "try:\n    experiment.collective_all_reduce(train, num_workers=2)\nexcept Exception:\n    pass\n"
    )
    run(home, script, FAILS="1")
    (made,) = (home / "project" / "Experiments").iterdir()
    shutil.move(made, made.with_name(RUN_ID))


@pytest.mark.local
def test_every_snippet_is_tested() -> None:
    found = {page: snippets(page) for page in users_pages()}
    assert {page for page, some in found.items() if some} == set(TESTED)
    assert all(len(found[page]) == len(known) for page, known in TESTED.items())
    assert all(snippet(page, words) for page, known in TESTED.items() for words in known)


@pytest.mark.variant
@pytest.mark.local
def test_serving_snippet_serves_a_model(home: Path) -> None:
    folder = {"HOPSML_SERVING_FOLDER": str(home / "machine")}
    printed = run(home, preambles.SERVING + snippet(SERVING, "serving.canary("), **folder)
    assert "digits: version 3 of digits answers at http://127.0.0.1:" in printed and "[3. 3.]" in printed


@contextlib.contextmanager
def served(home: Path) -> Iterator[dict[str, str]]:
    """The variables by which commands find a job service, as ``hopsml server`` starts it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOPSML_")}
    found = {"HOPSML_SERVER_STATE": str(home / "state"), "HOPSML_CONF_DIR": str(home / "conf"), "PYTHONPATH": str(ROOT)}
    found |= {"HOPSML_PROJECT_URL": f"file://{home}/project", "HOPSML_MLFLOW": "0"}
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    line = [sys.executable, "-m", "hopsml", "server"]
    with (
        open(home / "server.log", "w") as log,
        subprocess.Popen(line, env={**inherited, **found}, stdout=subprocess.PIPE, stderr=log, cwd=home) as server,
    ):
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith(b"http://127.0.0.1:"), (home / "server.log").read_text()
            yield found
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(END_S) == 0


@pytest.mark.local
@pytest.mark.variant  # of tests/integration/service/test_job_service.py
def test_local_service_snippets_submit_and_follow_a_job(home: Path) -> None:
    (home / "train.py").write_text(snippet(LOCAL_SERVICE, "experiment.distributed("))
    (home / "job.yaml").write_text("name: digits\ntasks: {main: {script: train.py, count: 2}}\n")
    submit, watch = (block for block in snippets(LOCAL_SERVICE, "sh") if "hopsml jobs" in block)
    with served(home) as found:
        line = ["bash", "-ec", submit + watch]
        shown = subprocess.run(line, env={**os.environ, **found}, cwd=home, capture_output=True, timeout=END_S)
        output = shown.stdout.decode() + shown.stderr.decode()
        assert shown.returncode == 0 and output.startswith("digits-1\n"), output
        assert re.search(r"run digits-1-[0-9a-f]{8}-main_1: FINISHED: accuracy 0.9", output), output
        printed = run(home, "\n".join(snippets(CLIENT)), **found)
    assert "FINISHED" in printed and re.search(r"digits-2-[0-9a-f]{8}-main_1", printed), printed
    assert "\nCANCELLED\n" in printed and "\ndigits-1 FINISHED 1\n" in printed, printed


@pytest.mark.local
def test_large_batch_snippet_prints_the_plan(home: Path) -> None:
    assert "linear scaling: x 32" in run(home, snippet("docs/how-to/large-batch.md", "large.Recipe("))


@pytest.mark.variant
@pytest.mark.tensorflow
def test_growing_batch_snippet_trains(home: Path) -> None:
    script = preambles.GROWING + snippet("docs/how-to/large-batch.md", "BatchSizeSchedule.doubling(")
    assert "1 more joined" in run(home, script)


@pytest.mark.variant
@pytest.mark.tensorflow
def test_recomputed_statistics_snippet_trains(home: Path) -> None:
    script = preambles.NORMALISED + snippet("docs/how-to/large-batch.md", "recomputed_statistics(")
    assert "trained" in run(home, f"{script}\nprint('trained')\n")


@pytest.mark.local
def test_snippets_on_two_pages_are_equal() -> None:
    assert snippets("docs/index.md") == [snippet(FIRST, "loss *= 1 - lr")]
    assert snippet(NOTEBOOK, "%load_ext").startswith(snippet("README.md", "%load_ext"))
    assert snippet(AIRFLOW, "HopsMLOperator(").startswith(snippet("README.md", "HopsMLOperator("))


@pytest.mark.local
def test_readme_lines_are_those_of_the_demo() -> None:
    demo = [line.strip() for line in (ROOT / "spark_jobs" / "train_digits.py").read_text().splitlines()]
    for line in snippet("README.md", "▶ import hopsml").splitlines():
        code = line[2:].partition("  #")[0].strip()
        assert code in ("", "...") or code in demo, line


@pytest.mark.local
def test_airflow_snippet_uses_existing_operator_arguments() -> None:
    tree = ast.parse((ROOT / "hopsml" / "airflow" / "operators.py").read_text())
    known = {
        argument.arg for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        for argument in (*node.args.args, *node.args.kwonlyargs)
    } | {"task_id"}  # fmt: skip
    calls = [node for node in ast.walk(ast.parse(snippet(AIRFLOW, "HopsMLOperator("))) if isinstance(node, ast.Call)]
    assert calls and {keyword.arg for call in calls for keyword in call.keywords} <= known


@pytest.mark.local
def test_first_steps_snippet_trains(home: Path) -> None:
    printed = run(home, snippet(FIRST, "loss *= 1 - lr"))
    assert "FINISHED" in printed and f"{0.95**100:.4f}" in printed
    (log,) = (home / "project").glob("Experiments/*/logs/g0-rank1.log")
    assert "the loss came down to 0.0059" in log.read_text()


@pytest.mark.tensorflow
def test_keras_program_of_the_first_steps_trains_alone(home: Path) -> None:
    printed = run(home, snippet(FIRST, "keras.Sequential("))
    result = json.loads(printed[printed.rindex('\n{"') :].splitlines()[1])
    assert result["state"] == "FINISHED" and result["workers"] == 2 and result["test_accuracy"] > 0.8
    assert "was reported last" not in printed


@pytest.mark.tensorflow
@pytest.mark.variant  # of integration/experiment/test_parameter_server.py
def test_parameter_server_snippet_trains(home: Path) -> None:
    (home / "conf" / "local.yaml").write_text("master: none\nlocal_slots: 3\n")
    printed = run(home, preambles.SERVERS + snippet(SERVERS, "ServerLoop("))
    assert "'steps': 300.0" in printed, printed


@pytest.mark.local
@pytest.mark.variant  # tests/integration/spark/test_collective.py and tests/integration/collective say it
def test_communication_snippet_trains(home: Path) -> None:
    printed = run(home, snippet(COMMUNICATION, "hopsml.all_reduce("))
    (accuracy,) = re.findall(r"'accuracy': (0\.\d+)", printed)
    assert float(accuracy) > 0.9


@pytest.mark.variant
@pytest.mark.tensorflow
def test_algorithms_snippet_trains(home: Path) -> None:
    printed = run(home, "\n".join(snippets(ALGORITHMS)))
    assert (
        float(re.findall(r"local SGD: (\S+)", printed)[0]) < 5.0
    )  # the mean of all steps; untrained it is more than 8
    assert float(re.findall(r"a module: (\S+)", printed)[0]) < 5.0


@pytest.mark.local
def test_storage_snippets_run(home: Path) -> None:
    *files, unstored = snippets(STORAGE)
    trained = f"def train():\n    return 7\n{unstored}"
    script = "\n".join([*files, trained, "print(local, rows, result.value)\n"])
    printed = run(home, script, HOPSML_PROFILE="local")
    assert str(home / "rows.csv") in printed and "4.9,3.0" in printed and "] 7\n" in printed


@pytest.mark.variant
@pytest.mark.local
def test_model_snippets_run(home: Path) -> None:
    printed = run(home, "\n".join(snippets(MODELS)) + "print(folder)\n", HOPSML_MODEL_CACHE=str(home / "models"))
    assert str(home / "models" / "digits-1-") in printed and re.search(r"1 +0\n.*2 +1\n", printed)


@pytest.mark.local
def test_run_management_snippets_run(home: Path) -> None:
    recorded_run(home)
    daily = [one for one in snippets(RUNS) if "EarlyStopping(" not in one]
    run(home, "import hopsml\n" + preambles.DAILY + "\n".join(daily) + "experiment.shutdown()\n")
    statuses = sorted((home / "project" / "Experiments").glob("*/status.json"))
    assert len(statuses) == 4, "that which was resumed, was cancelled, goes on, is the driver's own"
    (before,) = [one for one in statuses if one.parent.name == RUN_ID]
    records = [json.loads(one.with_name("run.json").read_text()) for one in statuses]
    assert [str(record.get("continues")).rpartition("/")[2] for record in records].count(RUN_ID) == 1, (
        "a run of its own"
    )
    (rm,) = [block for block in snippets(RUNS, "sh") if "runs rm" in block]
    found = {"HOPSML_PROJECT_URL": f"file://{home}/project", "HOPSML_MLFLOW": "0", "PYTHONPATH": str(ROOT)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", rm], env={**os.environ, **found, "PATH": path}, check=True, timeout=END_S)
    assert not before.exists() and len([one for one in statuses if one.exists()]) == 3


@pytest.mark.variant
@pytest.mark.tensorflow
def test_early_stopping_snippet_stops_all_workers_and_limits_checkpoints(home: Path) -> None:
    printed = run(home, "import hopsml\n" + snippet(RUNS, "EarlyStopping(") + "print(stopped.metrics)\n")
    assert "'workers_agree': True" in printed and 2 < int(re.findall(r"'epochs': (\d+)", printed)[0]) < 50
    (run_dir,) = (home / "project" / "Experiments").iterdir()
    saved = [one for one in run_dir.glob("checkpoints/**/manifest.json")]
    assert len(saved) == 2, saved


@pytest.mark.tensorflow
@pytest.mark.variant  # without a GPU there is no memory that could grow
def test_gpu_memory_snippet_runs_on_two_workers(home: Path) -> None:
    printed = run(
        home, "import hopsml\n" + snippet("docs/how-to/gpus.md", "set_memory_growth(") + "print(result.metrics)\n"
    )
    assert "'replicas': 2" in printed


@pytest.mark.variant
@pytest.mark.local
def test_search_snippet_runs_64_trials(home: Path) -> None:
    printed = run(home, preambles.SEARCH + snippet(SEARCH, "Searchspace(") + "print('trials', len(best.trials))\n")
    assert "trials 64" in printed


@pytest.mark.variant
@pytest.mark.local
def test_stopper_snippet_runs_10_trials(home: Path) -> None:
    first = snippet(SEARCH, "Searchspace(").partition("best = ")[0]
    script = preambles.SEARCH + first + snippet(SEARCH, "stopper_args=") + "print('trials', len(best.trials))\n"
    assert "trials 10" in run(home, script)


@pytest.mark.torch
@pytest.mark.variant  # of integration/experiment/test_torch_prepare.py
def test_torch_search_snippet_runs(home: Path) -> None:
    script = "from hopsml import experiment\n" + snippet(SEARCH, 'framework="torch"')
    assert "loss" in run(home, script + "print('loss', best.value)\n")


@pytest.mark.tensorflow
@pytest.mark.variant  # of integration/cluster/test_growing.py, and of integration/training/test_elastic_fit.py
def test_elastic_snippet_trains(home: Path) -> None:
    shown = run(home, preambles.ELASTIC + snippet(ELASTIC, "state.resume("))
    assert "ended at its beginning" not in shown
    (status,) = (home / "project" / "Experiments").glob("*/status.json")
    assert '"FINISHED"' in status.read_text() and '"formed": true' in status.read_text()


@pytest.mark.variant
@pytest.mark.local
def test_data_snippet_trains(home: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = np.random.default_rng(0).normal(size=(20_000, 8))
    pq.write_table(pa.table({"features": list(features), "label": features.sum(1)}), home / "rows.parquet")
    page = snippet(DATA, "hopsml.data.parquet(").replace("hdfs:///data/clicks", f"file://{home}/rows.parquet")
    shown = run(home, page)
    found = re.search(r"'error': (\S+?)[,}]", shown)
    assert found is not None and float(found[1]) < 1e-3, shown


@pytest.mark.local
def test_files_snippet_reads_images(home: Path) -> None:
    for kind in ("cat", "dog"):
        (home / "images" / kind).mkdir(parents=True)
        (home / "images" / kind / "1.jpg").write_bytes(kind.encode() * 7)
    shown = run(home, snippet(DATA, "hopsml.data.files(") + f"print(*load('{home}/images'))\n")
    assert "[21, 21]" in shown and "'cat'" in shown and "'dog'" in shown


@pytest.mark.variant
@pytest.mark.tensorflow
def test_notebook_snippet_runs(home: Path) -> None:
    cell = snippet(NOTEBOOK, "%load_ext").replace("%tensorboard_run", "")  # which starts a server for a browser
    train = snippet(FIRST, "loss *= 1 - lr").partition("if __name__")[0]
    run(
        home,
        "from IPython.core.interactiveshell import InteractiveShell\nshell = InteractiveShell.instance()\n"
        f"import hopsml\nshell.user_ns['hopsml'] = hopsml\nshell.run_cell({train!r}).raise_error()\n"
        f"shell.run_cell({cell!r}).raise_error()\n",
    )


@pytest.mark.spark
def test_user_session_runs_and_its_end_is_noted(home: Path) -> None:
    run_it = "experiment.distributed(lambda: 7, num_workers=2)"
    printed = run(
        home,
        snippet(NOTEBOOK, "PYSPARK_PYTHON") + f"\nfrom hopsml import experiment\nprint({run_it}.run_id)\n"
        f"spark.stop()\nprint({run_it}.run_id)\n",
        PATH=os.defpath,
    )
    runs = [line for line in printed.splitlines() if re.fullmatch(r"(app|local)-\S+_1", line)]
    assert [one.partition("-")[0] for one in runs] == ["app", "local"], printed
    assert "the Spark session of this process has been stopped" in printed


@pytest.mark.torch
@pytest.mark.parametrize(
    ("packages", "words", "expected"),
    [
        (("lightning",), "lightning.Trainer(", r'"loss": 0\.0\d+'),
        (("transformers", "datasets", "accelerate"), "TrainingArguments(", r'"steps": 16\b'),
        (("accelerate",), "Accelerator(", r'"processes": 2\b'),
    ],
    ids=["lightning", "trainer", "accelerate"],
)
def test_torch_library_snippet_trains(home: Path, packages: tuple[str, ...], words: str, expected: str) -> None:
    if missing := [package for package in packages if importlib.util.find_spec(package) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    printed = run(home, "from hopsml import experiment\n" + snippet(FRAMEWORKS, words), HOPSML_PROFILE="local")
    assert re.search(expected, printed), printed


@pytest.mark.torch
@pytest.mark.variant  # of integration/experiment/test_torch.py and integration/experiment/test_other_frameworks.py
def test_framework_snippets_train(home: Path) -> None:
    script = preambles.FRAMEWORKS + snippet(FRAMEWORKS, "hopsml.torch.prepare(") + snippet(FRAMEWORKS, "RabitTracker(")
    printed = run(home, script, HOPSML_PROFILE="local")
    assert len(re.findall(r"state +FINISHED", printed)) == 2
    (accuracy,) = re.findall(r"accuracy\s*[=:]?\s*([0-9.]+)", printed)
    assert float(accuracy) > 0.95


@pytest.mark.torch
def test_evaluation_and_serving_snippets_run_after_a_training(home: Path) -> None:
    judged = snippet(RUNS, "hopsml.load_checkpoint(") + snippet("README.md", "experiment.evaluate(")
    script = preambles.DOORS + judged + 'print(best.metrics)\nserving.stop("digits")\n'
    printed = run(home, script, HOPSML_PROFILE="local", HOPSML_SERVING_FOLDER=str(home / "machine"))
    assert re.search(r"'evaluated': [1-9]", printed) and "'accuracy': 0.75" in printed
    assert "version 1 of digits answers at http://127.0.0.1" in printed and "[3. 3.]" in printed


@pytest.mark.torch
@pytest.mark.variant  # half a minute; what differs is named in training/test_torch_differing.py
def test_dynamic_model_snippets_train(home: Path) -> None:
    (home / "conf" / "local.yaml").write_text("master: none\nlocal_slots: 3\n")
    printed = run(
        home, "import hopsml\nfrom hopsml import experiment\n" + "\n".join(snippets(DYNAMIC)), HOPSML_PROFILE="local"
    )
    found = {name: float(value) for name, value in re.findall(r"(\w+) (-?\d[\d.e-]*)\b", printed)}
    assert found["alternating"] > 0.9 and found["sequences"] > 0.95
    assert 3.5 < found["adversarial"] < 4.5
    assert found["growing"] < 0.1 and found["smaller"] < 0.5
    assert found["actors"] > 0.75
