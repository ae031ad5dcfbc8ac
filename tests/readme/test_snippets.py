"""README's snippets of Python, each as it stands, behind the preamble that ``preambles.py`` has for it."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme import preambles

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 200
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
RUN_ID = "app-20261120-0001_1"  # as README calls it


def block(words: str) -> str:
    """The one snippet with these words in it."""
    (found,) = [one for one in BLOCKS if words in one]
    return str(found)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two slots of this machine, and a project."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "local.yaml").write_text("master: none\nlocal_slots: 2\n")
    return tmp_path


def run(home: Path, script: str, **more: str) -> str:
    """What a script prints, in a process of its own; ended with all that it has started."""
    (home / "script.py").write_text(script)
    environment = {name: value for name, value in os.environ.items() if name not in ("HOPSML_PROFILE", "TF_CONFIG")}
    environment |= {"HOPSML_CONF_DIR": str(home / "conf"), "HOPSML_PROJECT_URL": f"file://{home}/project", **more}
    environment |= {"PYTHONPATH": str(ROOT), "HOPSML_MLFLOW": "0"}
    ended = subprocess.run(
        [sys.executable, str(home / "script.py")], env=environment, cwd=home, capture_output=True, timeout=TIMEOUT_S
    )
    printed = ended.stdout.decode() + ended.stderr.decode()
    assert ended.returncode == 0, printed
    return printed


def recorded_run(home: Path) -> None:
    """A run under the id that README uses: one that failed, so that there is something to go on with."""
    script = (
        preambles.DAILY
        + "try:\n    experiment.collective_all_reduce(train, num_workers=2)\nexcept Exception:\n    pass\n"
    )
    run(home, script, FAILS="1")
    (made,) = (home / "project" / "Experiments").iterdir()
    shutil.move(made, made.with_name(RUN_ID))


@pytest.mark.local
def test_every_snippet_is_tested_here() -> None:
    known = ["▶ import hopsml", "%load_ext", "HopsMLOperator(", "experiment.resume(", "state.resume(", "Searchspace("]
    assert len(BLOCKS) == len(known) and all(block(words) for words in known)


@pytest.mark.local
def test_the_six_lines_are_those_of_the_demo() -> None:
    demo = [line.strip() for line in (ROOT / "spark_jobs" / "train_digits.py").read_text().splitlines()]
    for line in block("▶ import hopsml").splitlines():
        code = line[2:].partition("  #")[0].strip()
        assert code in ("", "...") or code in demo, line


@pytest.mark.local
def test_the_operators_have_the_arguments_that_are_given_to_them() -> None:
    tree = ast.parse((ROOT / "hopsml" / "airflow" / "operators.py").read_text())
    known = {
        argument.arg for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        for argument in (*node.args.args, *node.args.kwonlyargs)
    } | {"task_id"}  # fmt: skip
    calls = [node for node in ast.walk(ast.parse(block("HopsMLOperator("))) if isinstance(node, ast.Call)]
    assert calls and {keyword.arg for call in calls for keyword in call.keywords} <= known


@pytest.mark.local
def test_day_by_day(home: Path) -> None:
    recorded_run(home)
    run(home, "import hopsml\n" + preambles.DAILY + block("experiment.resume(") + "experiment.shutdown()\n")
    statuses = sorted((home / "project" / "Experiments").glob("*/status.json"))
    assert len(statuses) == 3, "the one that was resumed, the one that was cancelled, and the one that goes on"


@pytest.mark.local
def test_search(home: Path) -> None:
    printed = run(home, preambles.SEARCH + block("Searchspace(") + "print('trials', len(best.trials))\n")
    assert "trials 64" in printed


@pytest.mark.tensorflow
def test_workers_that_come_and_go(home: Path) -> None:
    shown = run(home, preambles.ELASTIC + block("state.resume("))
    assert "ended at its beginning" not in shown
    (status,) = (home / "project" / "Experiments").glob("*/status.json")
    assert '"FINISHED"' in status.read_text() and '"formed": true' in status.read_text()


@pytest.mark.tensorflow
def test_notebook(home: Path) -> None:
    recorded_run(home)
    cell = block("%load_ext").replace("%tensorboard_run", "")  # which starts a server for a browser
    train = "def train(lr):\n    return {'accuracy': 1 - lr}\n"
    run(
        home,
        "from IPython.core.interactiveshell import InteractiveShell\nshell = InteractiveShell.instance()\n"
        f"import hopsml\nshell.user_ns['hopsml'] = hopsml\nshell.run_cell({train!r}).raise_error()\n"
        f"shell.run_cell({cell!r}).raise_error()\n",
    )
