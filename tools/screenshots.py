"""Pictures of the notebook display for docs/images: a real kernel, real runs, a real browser.

    python -m tools.screenshots [--profile local-cluster] [--browser chromium]

The display's HTML is what the kernel sent to its front end while a training was running, when it had finished, and when
another one had failed; each stands on a light and on a dark page.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTH_PX = 800
SCALE = 2
CELL_TIMEOUT_S = 200
DEFINE = """
import warnings
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
CALL = "hopsml.experiment.collective_all_reduce(train, args={args}, name={name!r}, num_workers=2)"
TRAIN = CALL.format(args={"epochs": 40}, name="digits")
FAIL = CALL.format(args={"epochs": 40, "bad_part": 7}, name="digits with a bad part")
END = "hopsml.experiment.shutdown(spark=True)"
_PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; font: 14px system-ui, sans-serif }} div.page {{ padding: 14px 20px }}
div.light {{ background: #fff; color: #1f2328 }} div.dark {{ background: #111; color: #d6d6d6 }}
</style><div class="page light">{0}</div><div class="page dark">{0}</div>
<script>document.title = "height " + document.documentElement.scrollHeight</script>"""


def main() -> None:
    """Make docs/images/notebook_{running,finished,failed}.png."""
    parser = argparse.ArgumentParser(description="pictures of the notebook display")
    parser.add_argument("--profile", default="local-cluster")
    parser.add_argument("--browser", default="chromium", help="a Chromium or Chrome")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hopsml-screenshots-") as folder:
        states, failed = shown(arguments.profile, folder)
        running = [html for html, text in states if ": running, " in text and "steps/s" in text]
        if not running:
            sys.exit("the run was over before it reported its speed; give it more epochs")
        if ": failed, " not in failed[-1][1]:
            sys.exit("the second run did not fail")
        pictures = {"running": running[len(running) // 2], "finished": states[-1][0], "failed": failed[-1][0]}
        for name, fragment in pictures.items():
            picture = ROOT / "docs" / "images" / f"notebook_{name}.png"
            photograph(fragment, picture, arguments.browser, Path(folder))
            print(picture.relative_to(ROOT))


def shown(profile: str, folder: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """All states of the displays of the two runs, as HTML and as text."""
    from jupyter_client.manager import start_new_kernel

    environment = {
        **os.environ,
        "HOPSML_PROFILE": profile,
        "HOPSML_PROJECT_URL": f"file://{folder}/project",
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    manager, client = start_new_kernel(env=environment, cwd=str(ROOT))
    try:
        _, trained, failed, _ = (list(states_of(client, code)) for code in (DEFINE, TRAIN, FAIL, END))
        return trained, failed
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


def states_of(client: Any, code: str) -> Iterator[tuple[str, str]]:
    """What a cell shows, from its first state to its last."""
    cell = client.execute(code)
    while True:
        message = client.get_iopub_msg(timeout=CELL_TIMEOUT_S)
        kind, content = message["msg_type"], message["content"]
        if message["parent_header"].get("msg_id") != cell:
            continue
        if kind in ("display_data", "update_display_data"):
            yield content["data"]["text/html"], content["data"]["text/plain"]
        elif kind == "status" and content["execution_state"] == "idle":
            return


def photograph(fragment: str, picture: Path, browser: str, folder: Path) -> None:
    """The fragment as a browser shows it: asked first how high it is, then for the picture."""
    page = folder / "page.html"
    page.write_text(_PAGE.format(fragment), encoding="utf-8")
    command = [browser, "--headless", "--hide-scrollbars", f"--user-data-dir={folder}/browser"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # which Chromium does not build for root
    look = [*command, f"--window-size={WIDTH_PX},100", "--dump-dom", page.as_uri()]
    content = subprocess.run(look, check=True, capture_output=True, text=True).stdout
    height = re.search(r"<title>height (\d+)", content)
    if height is None:
        sys.exit(f"{browser} did not show the page: {content[:500]}")
    size = [f"--window-size={WIDTH_PX},{height.group(1)}", f"--force-device-scale-factor={SCALE}"]
    picture.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, *size, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
