"""Create pictures of the notebook display for docs/images with a real kernel, real runs and a real browser.

    python -m tools.screenshots [--profile local-cluster] [--browser chromium]

The outputs of the kernel (during a training, after its end, after the failure of another one, and of a search) are put below
their cell in a notebook, which nbconvert turns into a page, in JupyterLab's light and dark theme.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTH_PX = 860
SCALE = 1.25
COLOURS = 96  # a third of the bytes, without a visible difference
MARGIN_PX = 24
CELL_TIMEOUT_S = 200
DEFINE = """
import time, warnings
import hopsml
from spark_jobs import train_digits

def train(epochs, bad_part=None):
    import keras, tensorflow as tf
    from sklearn.datasets import load_digits

    warnings.simplefilter("ignore")
    strategy = hopsml.tensorflow.strategy()
    is_chief = strategy.cluster_resolver.task_type == "chief"
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    x = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x[:1400], labels[:1400])).shuffle(1400, seed=1).batch(128)
    test = tf.data.Dataset.from_tensor_slices((x[1400:], labels[1400:])).batch(128)
    with strategy.scope():
        model = train_digits.build_model(0.002)

    def tell(epoch, logs):
        print(f"epoch {epoch + 1} of {epochs}: loss {logs['loss']:.4f}", flush=True)
        model.stop_training = bad_part is not None and not is_chief and epoch == 3

    told = keras.callbacks.LambdaCallback(on_epoch_end=tell)
    model.fit(data, epochs=epochs, verbose=0, callbacks=[told, *hopsml.tensorflow.callbacks()])
    if model.stop_training:
        raise ValueError(f"part {bad_part} holds 3 columns, 64 were expected")
    return {"accuracy": model.evaluate(test, verbose=0)[1]}
"""
CALL = "result = hopsml.experiment.collective_all_reduce(\n    train, args={args}, name={name!r}, num_workers=2\n)"
TRAIN = CALL.format(args={"epochs": 40}, name="digits")
FAIL = CALL.format(args={"epochs": 40, "bad_part": 7}, name="digits with a bad part")
SEARCH = """
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

def fit(alpha, eta0, loss):
    x, test_x, y, test_y = train_test_split(*load_digits(return_X_y=True), random_state=1)
    model = SGDClassifier(alpha=alpha, loss=loss, learning_rate="constant", eta0=eta0, random_state=1)
    for step in range(1, 41):
        model.partial_fit(x, y, classes=range(10))
        time.sleep(0.05)
        hopsml.report(step=step, accuracy=model.score(test_x, test_y))
    return model.score(test_x, test_y)
"""
FIND = """
space = hopsml.experiment.Searchspace(
    alpha=("LOGUNIFORM", [1e-6, 1]),
    eta0=("LOGUNIFORM", [1e-4, 1]),
    loss=("CATEGORICAL", ["hinge", "log_loss"]),
)
found = hopsml.experiment.search(
    fit, space, searcher="tpe", stopper="median", num_trials=24,
    direction="max", metric="accuracy", name="classifier",
)
"""
END = "hopsml.experiment.shutdown(spark=True)"
METRICS_S = "2"  # between two samples of CPU and memory: the runs are short
Output = dict[str, Any]
_MEASURE = 'document.title = "height " + Math.ceil(document.querySelector("main").getBoundingClientRect().height)'


def main() -> None:
    """Write the pictures docs/images/notebook_{running,finished,failed,search}.png."""
    parser = argparse.ArgumentParser(description="pictures of the notebook display")
    parser.add_argument("--profile", default="local-cluster")
    parser.add_argument("--browser", default="chromium", help="a Chromium or Chrome")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hopsml-screenshots-") as folder:
        trained, failed, searched = shown(arguments.profile, folder)
        pictures = {
            "running": (TRAIN, [halfway(trained, "step ")]),
            "finished": (TRAIN, trained[-1]),
            "failed": (FAIL, failed[-1]),
            "search": (FIND, [halfway(searched, "trials ")]),
        }
        for name, (code, outputs) in pictures.items():
            picture = ROOT / "docs" / "images" / f"notebook_{name}.png"
            photograph(code.strip(), outputs, picture, arguments.browser, Path(folder))
            print(picture.relative_to(ROOT), f"{picture.stat().st_size / 1000:.0f} kB")


def halfway(states: list[list[Output]], progress: str) -> Output:
    """Return the display when the training, or the search, was nearest to two thirds of its steps."""
    ways: list[tuple[float, int]] = []
    for index, outputs in enumerate(states):
        found = re.search(rf"{progress}(\d+) of (\d+)", outputs[0]["data"]["text/plain"]) if outputs else None
        if found:
            ways.append((abs(int(found[1]) / int(found[2]) - 0.67), index))
    if not ways:
        sys.exit("the run was over before it said how far it was; give it more to do")
    return states[min(ways)[1]][0]


def shown(profile: str, folder: str) -> tuple[list[list[Output]], ...]:
    """Return all states of the outputs of the three cells."""
    from jupyter_client.manager import start_new_kernel

    environment = {
        **os.environ,
        "HOPSML_PROFILE": profile,
        "HOPSML_PROJECT_URL": f"file://{folder}/project",
        "HOPSML_SYSTEM_METRICS_S": METRICS_S,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    manager, client = start_new_kernel(env=environment, cwd=str(ROOT))
    try:
        cells = [list(states_of(client, code)) for code in (DEFINE, TRAIN, FAIL, SEARCH, FIND, END)]
        return cells[1], cells[2], cells[4]
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def states_of(client: Any, code: str) -> Iterator[list[Output]]:
    """Execute a cell and yield each state of its outputs: the display, and the error below it."""
    cell = client.execute(code.strip())
    outputs: list[Output] = []
    while True:
        message = client.get_iopub_msg(timeout=CELL_TIMEOUT_S)
        kind, content = message["msg_type"], message["content"]
        if message["parent_header"].get("msg_id") != cell:
            continue
        if kind in ("display_data", "update_display_data"):
            displayed = {"output_type": "display_data", "data": content["data"], "metadata": {}}
            outputs = [displayed, *(one for one in outputs if one["output_type"] == "error")]
            yield outputs
        elif kind == "error":
            outputs = [*outputs, {"output_type": "error", **content}]
            yield outputs
        elif kind == "status" and content["execution_state"] == "idle":
            return


def photograph(code: str, outputs: list[Output], picture: Path, browser: str, folder: Path) -> None:
    """Write a picture of the cell with its outputs in both themes; the browser measures the height first."""
    from PIL import Image

    pages = [page_of(code, outputs, theme, folder) for theme in ("light", "dark")]
    command = [browser, "--headless", "--hide-scrollbars", f"--user-data-dir={folder}/browser"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # Chromium has no sandbox for root
    heights = [height_of(page, command) for page in pages]
    both = folder / "both.html"
    frames = "".join(
        f'<iframe src="{page.name}" style="display:block;border:0;width:100%;height:{height}px"></iframe>'
        for page, height in zip(pages, heights, strict=True)
    )
    both.write_text(f'<!doctype html><body style="margin:0">{frames}', encoding="utf-8")
    picture.parent.mkdir(parents=True, exist_ok=True)
    size = [f"--window-size={WIDTH_PX},{sum(heights)}", f"--force-device-scale-factor={SCALE}"]
    subprocess.run([*command, *size, f"--screenshot={picture}", both.as_uri()], check=True, capture_output=True)
    Image.open(picture).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)


def page_of(code: str, outputs: list[Output], theme: str, folder: Path) -> Path:
    """Return the page of a notebook with this one cell."""
    cell = {"cell_type": "code", "id": "cell", "source": code, "outputs": outputs, "execution_count": 3, "metadata": {}}
    notebook = folder / f"{theme}.ipynb"
    notebook.write_text(
        json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8"
    )
    nothing = [f"--HTMLExporter.{name}_url=" for name in ("mathjax", "require_js", "jquery", "widget_renderer")]
    command = [sys.executable, "-m", "nbconvert", "--to", "html", f"--HTMLExporter.theme={theme}", *nothing]
    subprocess.run([*command, str(notebook)], check=True, capture_output=True)
    page = notebook.with_suffix(".html")
    content = page.read_text(encoding="utf-8").replace("</body>", f"<script>{_MEASURE}</script></body>")
    page.write_text(content, encoding="utf-8")
    return page


def height_of(page: Path, command: list[str]) -> int:
    """Return the page's height in pixels, in a window of ``WIDTH_PX``."""
    look = [*command, f"--window-size={WIDTH_PX},100", "--dump-dom", page.as_uri()]
    content = subprocess.run(look, check=True, capture_output=True, text=True).stdout
    found = re.search(r"<title>height (\d+)", content)
    if found is None:
        sys.exit(f"the browser did not show the page: {content[:500]}")
    return int(found.group(1)) + MARGIN_PX


if __name__ == "__main__":
    main()
