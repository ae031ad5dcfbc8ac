"""Create pictures of the page for docs/images: of an active run, and of a service's models, servings, data sets and code.

    python -m tools.page_screenshots [--folder docs/images] [--browser chromium] [--pages runs|service]

Four workers on this machine train a softmax regression with NumPy; rank 2 prepares its data inefficiently, so that the
others wait for it. `hopsml runs profile` profiles it. For the service two versions of a model are exported and served by two
replicas with a canary, which answer predictions, and a job names a data set. Each page is photographed wide and narrow,
light and dark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
SIZES = {1440: 900, 390: 844}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
COLOURS = 96
TIMEOUT_S, PROFILE_S, SAMPLES = 240.0, 3, 14
SLOW, TRIES = 2, 4
TRAIN = f"""
import time
import hopsml

def prepare(images):
    rows = []
    for image in images:
        pixels = [float(value) / 16.0 for value in image]
        mean = sum(pixels) / len(pixels)
        rows.append([value - mean for value in pixels])
    return rows

def step(weights, x, wanted):
    import numpy as np

    scores = np.exp(x @ weights)
    return x.T @ (scores / scores.sum(axis=1, keepdims=True) - wanted) / len(x)

def train():
    import os
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rank, size = hopsml.distributed.rank(), hopsml.distributed.world_size()
    if rank == 0:
        sheet = np.uint8(255 - images[:64].reshape(8, 8, 8, 8).swapaxes(1, 2).reshape(64, 64) * 15.9)
        Image.fromarray(sheet).resize((512, 512), Image.Resampling.NEAREST).save("digits.png")
        with open("labels.csv", "w") as file:
            file.write("image,label,mean\\n")
            file.writelines(f"digit-{{n}},{{labels[n]}},{{images[n].mean():.3f}}\\n" for n in range(300))
    x, wanted = (images / 16.0)[rank::size], np.eye(10)[labels[rank::size]]
    weights, number = np.zeros((64, 10)), 0
    while not os.path.exists(os.environ["PICTURES_END"]):
        if rank == {SLOW}:
            x = np.array(prepare(images[rank::size]))
        weights -= 0.3 * hopsml.all_reduce(step(weights, x, wanted)) / size
        number += 1
        if rank == 0 and number % 5 == 0:
            hopsml.report(step=number, accuracy=float((np.argmax(x @ weights, axis=1) == labels[rank::size]).mean()))
    return {{"accuracy": 1.0}}

hopsml.experiment.collective_all_reduce(train, name="digits", num_workers=4)
"""


PREDICTED_S = 25.0  # for which the serving gets requests: two of its intervals
JOB = """name: digits
description: digits of the data set
datasets: {{digits: {url}}}
tasks: {{train: {{script: train.py}}}}
"""
READS = """import os
import pandas

print(pandas.read_parquet(os.environ["HOPSML_DATASET_DIGITS"] + "/digits.parquet").describe())
"""


def main() -> None:
    """Write the pictures ui-{name of the page}-{1440,390}-{light,dark}.png."""
    parser = argparse.ArgumentParser(description="pictures of the page")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--browser", default=shutil.which("chromium") or "chromium", help="a Chromium or Chrome")
    parser.add_argument("--pages", choices=["runs", "service"], help="default: both")
    arguments = parser.parse_args()
    for name, photographs in (("runs", of_runs), ("service", of_service)):
        if arguments.pages in (None, name):
            with tempfile.TemporaryDirectory(prefix="hopsml-pictures-") as folder:
                photographs(Path(folder), arguments.folder, arguments.browser)


def of_runs(folder: Path, target: Path, browser: str) -> None:
    """Photograph the pages of an active run."""
    with training(folder) as run:
        profile(run)
        with page(run.parents[1]) as address:
            ring = {"ring": (f"run/{run.name}/workers", ".ring .slow", "")}
            photograph(address, ring, target, browser)
    files = f"run/{run.name}/files?path={next(run.rglob('digits.png')).parent.relative_to(run)}"
    over = {
        "profiles": (f"run/{run.name}/profiles", ".flame rect", ""),
        "preview": (files, "text=digits.png", "digits.png"),
        "table": (files, "text=labels.csv", "labels.csv"),
    }
    with page(run.parents[1]) as address:
        photograph(address, over, target, browser)


def of_service(folder: Path, target: Path, browser: str) -> None:
    """Photograph models, servings, data sets and a job's code."""
    os.environ |= {
        "HOPSML_PROJECT_URL": f"file://{folder}/project",
        "HOPSML_SERVING_FOLDER": f"{folder}/machine",
        "HOPSML_MLFLOW": "0",
        "HOPSML_PROFILE": "local",
    }
    export_models()
    with serving_digits(), service(folder) as address:
        job, url = submit_reader(folder, address)
        pages = {
            "models": ("models", "table", ""),
            "model": ("model/digits", ".properties", ""),
            "servings": ("servings", ".spark", ""),
            "datasets": ("datasets", "table", ""),
            "dataset": (f"dataset?url={quote(url, safe='')}", ".preview table", ""),
            "code": (f"job/{job}/code", "text=train.py", "train.py"),
        }
        photograph(address, pages, target, browser)


def export_models() -> None:
    """Export two versions of a model of scikit-learn's digits, the first one in production."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    from hopsml import model

    images, labels = load_digits(return_X_y=True)
    for strength in (0.0001, 0.1):
        trained = LogisticRegression(C=strength, max_iter=5000).fit(images[:1200], labels[:1200])
        accuracy = float(trained.score(images[1200:], labels[1200:]))
        model.export(
            trained, "digits", metrics={"accuracy": accuracy}, description=f"logistic regression, C={strength}"
        )
    model.set_alias("digits", 1, "production")


@contextmanager
def serving_digits() -> Iterator[None]:
    """Serve both versions, with a quarter of the requests for the newer one, until the block ends."""
    from sklearn.datasets import load_digits

    from hopsml import serving

    images, _ = load_digits(return_X_y=True)
    serving.start("digits", "production", replicas=2)
    over = threading.Event()

    def predict() -> None:
        while not over.wait(0.01):
            serving.predict("digits", images[:8])

    asking = threading.Thread(target=predict)
    asking.start()
    try:
        serving.canary("digits", 2, 0.25)
        time.sleep(PREDICTED_S)
        yield
    finally:
        over.set()
        asking.join()
        serving.stop("digits")


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """Start a job service on this machine, and yield its address."""
    command = [sys.executable, "-m", "hopsml", "server", "--state", f"{folder}/state", "--profile", "local"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def submit_reader(folder: Path, address: str) -> tuple[str, str]:
    """Submit a job that reads a data set, and return its id and the URL of the data set when it has ended."""
    import pandas
    from sklearn.datasets import load_digits

    from hopsml.client import Client

    images, labels = load_digits(return_X_y=True)
    data, code = folder / "project" / "Datasets" / "digits", folder / "code"
    data.mkdir(parents=True)
    code.mkdir()
    columns = {"label": labels, **{f"pixel{number}": images[:, number] for number in range(16)}}
    pandas.DataFrame(columns).to_parquet(data / "digits.parquet")
    (data / "README.md").write_text("Handwritten digits of 8 x 8 pixels: their labels and the first 16 pixels.\n")
    (code / "train.py").write_text(READS)
    (code / "job.yaml").write_text(JOB.format(url=f"file://{data}"))
    root, _, token = address.partition("?token=")
    client = Client(root, token)
    job = client.submit(code / "job.yaml")
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := client.job(job.id)).state.is_final and time.monotonic() < deadline:
        time.sleep(0.5)
    print(f"{found.id}: {found.state} {found.cause}", flush=True)
    return job.id, f"file://{data}"


@contextmanager
def training(folder: Path) -> Iterator[Path]:
    """Start a run that ends with the block; yield its directory once it has samples of all workers."""
    end, script = folder / "end", folder / "train.py"
    script.write_text(TRAIN)
    settings = {
        "PROFILE": "local",
        "PROJECT_URL": f"file://{folder}/project",
        "SYSTEM_METRICS_S": "1",
        "LOCAL_SLOTS": "4",
    }
    environment = {**os.environ, **{f"HOPSML_{name}": value for name, value in settings.items()}}
    environment |= {"PYTHONPATH": str(ROOT), "PICTURES_END": str(end), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.DEVNULL)
    try:
        logs = "Experiments/*/logs/g*-rank*.system.jsonl"
        wait(
            lambda: len(lists := [*(folder / "project").glob(logs)]) == 4 and min(map(lines, lists)) > SAMPLES, process
        )
        yield next((folder / "project" / "Experiments").iterdir())
    finally:
        end.touch()
        process.wait(60)


def lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return path.read_bytes().count(b"\n")


def wait(is_so: Any, process: subprocess.Popen[bytes]) -> None:
    """Wait until ``is_so()`` is true; exit if the process ends or the time is over."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit("the run ended, or took too long, before there was anything to see")
        time.sleep(0.2)


def profile(run: Path) -> None:
    """Profile the slow worker; repeated, as py-spy may not finish in time on a busy machine."""
    command = [
        sys.executable,
        "-m",
        "hopsml",
        "runs",
        "profile",
        str(run),
        "--rank",
        str(SLOW),
        "--seconds",
        str(PROFILE_S),
    ]
    for _ in range(TRIES):
        if subprocess.run(command, cwd=ROOT).returncode == 0:
            return
    sys.exit("there is no profile, so there are no pictures")


@contextmanager
def page(project: Path) -> Iterator[str]:
    """Start ``hopsml ui`` for a project, and yield its address."""
    command = [sys.executable, "-m", "hopsml", "ui", "--no-browser", f"file://{project}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def photograph(address: str, pages: dict[str, tuple[str, str, str]], folder: Path, browser: str) -> None:
    """Photograph pages in each size and theme.

    Args:
        address: address of the page, with its token.
        pages: by name: path of the page, selector to wait for, and name of a button to press then, or "".
        folder: where the pictures are written.
        browser: path of a Chromium.
    """
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for width, height in SIZES.items():
            for theme in THEMES:
                context = started.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
                context.set_default_timeout(60_000)
                seen = context.new_page()
                seen.goto(address)
                for name, (place, shown, pressed) in pages.items():
                    seen.goto(f"{address.partition('?')[0]}#/{place}")
                    seen.wait_for_selector(shown)
                    if pressed:
                        seen.get_by_role("button", name=pressed).click()
                        seen.wait_for_selector(".preview :is(img, table, pre)")
                    file = folder / f"ui-{name}-{width}-{theme}.png"
                    seen.screenshot(path=file)
                    Image.open(file).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
                        file, optimize=True
                    )
                    print(file.name, f"{file.stat().st_size / 1000:.0f} kB", flush=True)
                context.close()
        started.close()


if __name__ == "__main__":
    main()
