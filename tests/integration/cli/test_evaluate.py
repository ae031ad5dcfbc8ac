"""``hopsml runs evaluate``: a run that has ended, judged from a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopsml import experiment
from tests.helpers.command_line import Cli
from tests.integration.experiment.test_evaluations import save

pytestmark = pytest.mark.local

JUDGE = """
from __future__ import annotations
from dataclasses import dataclass
from judge_beside import FACTOR

@dataclass
class Found:
    value: float

def judge(folder, plus=0.0):
    return {"accuracy": Found(float((folder / "value").read_text())).value * FACTOR + plus}
"""


def test_ended_run_is_evaluated_incrementally(cli: Cli, store: Path, tmp_path: Path) -> None:
    (tmp_path / "judge_beside.py").write_text("FACTOR = 2\n")
    (tmp_path / "judge.py").write_text(JUDGE)
    with experiment.recorded("a training") as training:
        save(training.run_dir, tmp_path / "a", 10, 0.5)
        save(training.run_dir, tmp_path / "b", 20, 0.25)
    run_id = training.run_dir.rpartition("/")[2]
    unknown = cli("runs", "evaluate", run_id)
    assert (
        unknown.status == 1 and "was never evaluated" in unknown.err and f"hopsml runs evaluate {run_id}" in unknown.err
    )
    function = f"{tmp_path}/judge.py:judge"
    done = cli("runs", "evaluate", run_id, "--function", function, "--args", '{"plus": 0.125}', "--metric", "accuracy")
    assert done.status == 0, done.err
    assert [line.split() for line in done.out.splitlines()[-2:]] == [
        ["*", "step", "10", "accuracy=1.125"],
        ["step", "20", "accuracy=0.625"],
    ]
    save(training.run_dir, tmp_path / "c", 30, 1.0)
    left = json.loads(cli("runs", "evaluate", training.run_dir, "--json").out)
    assert left["best_step"] == 30 and [one["metrics"]["accuracy"] for one in left["checkpoints"]] == [
        1.125,
        0.625,
        2.125,
    ]
    least = json.loads(cli("runs", "evaluate", training.run_dir, "--direction", "min", "--json").out)
    assert least["best_step"] == 20
    wrong = cli("runs", "evaluate", training.run_dir, "--direction", "nonsense")
    assert wrong.status == 1 and "direction='nonsense'" in wrong.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--function", "nowhere.py:judge"], "the function must be given as FILE.py:NAME, and the file must exist"),
        (["--function", "{file}"], "the function must be given as FILE.py:NAME"),
        (["--function", "{file}:nobody"], "has no function nobody"),
        (["--function", "{file}:judge", "--args", "[1]"], "the arguments must be a JSON object"),
        (["--function", "{file}:judge", "--args", "{"], "the arguments must be a JSON object"),
        (["--function", "{file}:judge", "--direction", "up"], "direction='up': it must be one of 'max', 'min'"),
        (["--args", "{}"], "needs --function FILE.py:NAME"),
    ],
)
def test_invalid_evaluation_is_refused_in_one_sentence(
    cli: Cli, store: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    file = tmp_path / "judge.py"
    file.write_text("def judge(folder): return 1\n")
    with experiment.recorded("a training") as training:
        pass
    failed = cli("runs", "evaluate", training.run_dir, *(word.replace("{file}", str(file)) for word in words))
    assert failed.status == 1 and message in failed.err and len(failed.err.splitlines()) == 1
