"""Tests that run every notebook in a fresh kernel on local workers; as a variant on a real local-cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clock import END_S

ROOT = Path(__file__).parents[3]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

ON_THIS_MACHINE = (('"local-cluster"', '"local"'),)


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *replacements: tuple[str, str]) -> list[Any]:
    """Return the outputs of all cells of a repository notebook, after the given replacements of text."""
    import nbformat

    content = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    for old, new in replacements:
        (cell,) = (cell for cell in content.cells if cell.cell_type == "code" and old in cell.source)
        cell.source = cell.source.replace(old, new)
    return [output for cell in outputs_of(content, folder, monkeypatch) for output in cell]


def outputs_of(content: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[list[Any]]:
    """Return the outputs of each cell after a run from top to bottom."""
    from nbclient import NotebookClient

    (folder / "conf").mkdir()
    for profile in (ROOT / "conf").glob("*.yaml"):
        (folder / "conf" / profile.name).write_bytes(profile.read_bytes())
    (folder / "conf" / "local.yaml").write_text("master: none\nlocal_slots: 2\n")  # independent of this machine
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{folder}")
    monkeypatch.setenv("HOPSML_CONF_DIR", str(folder / "conf"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for variable in ("HOPSML_PROFILE", "HOPSML_PROGRESS"):
        monkeypatch.delenv(variable, raising=False)
    place = {"metadata": {"path": str(ROOT)}}
    NotebookClient(content, timeout=END_S, kernel_name="python3", resources=place, **options).execute()
    return [cell.get("outputs", []) for cell in content.cells]


def printed(outputs: list[Any]) -> str:
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


def shown(outputs: list[Any], mime: str) -> list[str]:
    return ["".join(output["data"][mime]) for output in outputs if mime in output.get("data", {})]


def displays(outputs: list[Any]) -> list[str]:
    """Return the final displays of runs, as text."""
    return [text for text in shown(outputs, "text/plain") if "run directory: " in text]


@pytest.mark.fast
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebooks_have_no_outputs(notebook: Path) -> None:
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "profile", ["local", pytest.param("local-cluster", marks=[pytest.mark.spark, pytest.mark.variant])]
)
def test_digits_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    profiles = ('"local-cluster"', f'"{profile}"')
    outputs = executed("digits.ipynb", tmp_path, monkeypatch, ("epochs=20", "epochs=1"), profiles)
    assert '"state": "FINISHED"' in printed(outputs)
    assert len(list((tmp_path / "Experiments").glob("*/status.json"))) == 2
    assert len(list((tmp_path / "Experiments").glob("*_2/epochs=2&lr=*/status.json"))) == 2
    assert list((tmp_path / "Experiments").glob("*_1/events/**/*tfevents*"))
    assert len(displays(outputs)) == 3 and all(": FINISHED, " in display for display in displays(outputs))


@pytest.mark.tensorflow  # it needs none, but takes too long to be a fast test
@pytest.mark.variant  # of docs/test_snippets.py, experiment/test_search.py and unit/notebook/test_search_view.py
def test_search_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = executed("search.ipynb", tmp_path, monkeypatch)
    searches = displays(outputs)
    assert len(searches) == 3 and all(": FINISHED, " in display for display in searches), searches
    assert "trials 20 of 20" in searches[0] and "trials 28 of 28" in searches[1] and "trials 4" in searches[2]
    lines = printed(outputs).splitlines()
    assert [line.rpartition(" ")[2] for line in lines][1:] == ["True", "True"], lines
    plots = [output for output in outputs if "application/vnd.plotly.v1+json" in output.get("data", {})]
    assert len(plots) == 3 and all(plot["data"]["application/vnd.plotly.v1+json"]["data"] for plot in plots)
    assert len(list((tmp_path / "Experiments").glob("*/trials.parquet"))) == 2


@pytest.mark.tensorflow
@pytest.mark.variant  # each strategy: tests/integration/training; the display of runs: the other notebooks
def test_strategies_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = executed("strategies.ipynb", tmp_path, monkeypatch)
    titles = [display.partition(" (")[0] for display in displays(outputs)]
    assert titles == ["hopsml.tensorflow.strategy", "MultiWorkerMirroredStrategy", "custom loop", "alone", "alone"]
    assert all(": FINISHED, " in display and "step" in display for display in displays(outputs))
    lines = [line.rsplit(maxsplit=1) for line in printed(outputs).splitlines() if line[-5:-3] == "0."]
    accuracy = {name: float(value) for name, value in lines}
    assert len(accuracy) == 5 and min(accuracy.values()) > 0.8, accuracy


@pytest.mark.tensorflow
@pytest.mark.variant
def test_results_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = executed("results.ipynb", tmp_path, monkeypatch)
    text = printed(outputs)
    assert "the same result: True" in text and "arguments  lr           0.001" in text
    assert "lr 0.01: 1400 images" in text  # from the log
    *_, first, second = (line for line in text.splitlines() if len(line) == 64)
    assert first == second
    assert any("accuracy=" in table and "FINISHED" in table for table in shown(outputs, "text/html"))
    assert len(displays(outputs)) == 3


@pytest.mark.tensorflow  # it needs none, but takes too long to be a fast test
@pytest.mark.variant  # of integration/experiment/test_torch.py, in a notebook
def test_torch_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = executed("torch.ipynb", tmp_path, monkeypatch, *ON_THIS_MACHINE)
    complete, lossy = (line.split() for line in printed(outputs).splitlines() if line.startswith("accuracy"))
    assert float(complete[1]) > 0.9 and float(lossy[1]) > 0.9
    assert complete[3] == lossy[3] and int(complete[3]) > 100, "no step is missing"
    logs = [sorted(path.name for path in tmp_path.glob(f"Experiments/*_{run}/logs/*rank1.log")) for run in (1, 2)]
    assert len(logs[0]) == 1 and len(logs[1]) == 2, "the second one was killed, and had a successor"
    assert len(displays(outputs)) == 2 and all(": FINISHED, " in display for display in displays(outputs))


@pytest.mark.spark
@pytest.mark.variant  # of integration/spark/test_data.py, in a notebook
def test_spark_to_training_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    outputs = executed("spark_to_training.ipynb", tmp_path, monkeypatch)
    (line,) = (line for line in printed(outputs).splitlines() if line.startswith("accuracy"))
    assert float(line.split()[1]) > 0.9
    (display,) = displays(outputs)
    assert "data='training': 1,437 rows" in display and "data='test': 360 rows" in display


@pytest.mark.tensorflow  # as above
@pytest.mark.variant  # of the README: integration/docs/test_snippets.py; of integration/serving/test_serving.py
def test_serving_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hopsml import serving

    monkeypatch.setenv("HOPSML_SERVING_FOLDER", str(tmp_path / "machine"))
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    try:
        outputs = executed("serving.ipynb", tmp_path, monkeypatch, *ON_THIS_MACHINE)
    finally:
        if serving.exists("digits"):
            serving.stop("digits")
    lines = printed(outputs).splitlines()
    assert any("answers at http://127.0.0.1:" in line for line in lines)
    first, then = (line.split()[1] for line in lines if " says " in line)
    assert {first, then} == {"1", "2"} and lines[-1].endswith("says [0 1 2 3 4]")
    assert serving.status("digits").state == "Stopped"


@pytest.mark.tensorflow  # it needs none, but takes too long to be a fast test
def test_failed_cell_has_a_display_and_one_short_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat

    code = (
        "from hopsml import experiment\n"
        "def fail(lr):\n    for k in range(50): print('row', k)\n    raise ValueError(f'bad lr {lr}')",
        "experiment.launch(fail, {'lr': [0.5]})",
        "experiment.collective_all_reduce(fail, args={'rate': 1})",
        "experiment.launch(lambda: 7).value",
    )
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in code])
    _, failed, refused, after = outputs_of(content, tmp_path, monkeypatch, allow_errors=True)
    shown_, error = failed
    text, traceback = shown_["data"]["text/plain"], re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert (shown_["output_type"], error["output_type"], error["ename"]) == ("display_data", "error", "WorkerFailed")
    assert (
        "FAILED" in text and "row 49" in text and "ValueError" not in text
    )  # the log in the one, the error in the other
    assert "row 49" not in traceback and "ValueError: bad lr 0.5" in traceback and "rank 0 of 1 on host" in traceback
    assert "Log of rank 0: file://" in traceback and not re.search(r"(?<!\.)hopsml/", traceback), traceback
    assert len(traceback.splitlines()) <= 17 and len(text.splitlines()) <= 27, (traceback, text)
    assert [output["output_type"] for output in refused] == ["error"] and len(refused[0]["traceback"]) <= 6
    assert after[-1]["data"]["text/plain"] == "7"
