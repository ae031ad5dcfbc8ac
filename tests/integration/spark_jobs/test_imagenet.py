"""Tests of ``spark_jobs/imagenet_resnet50.py``: plan for 1 024 workers, a few steps on generated images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.clock import END_S
from tests.helpers.training import record_files

JOB = Path(__file__).parents[3] / "spark_jobs" / "imagenet_resnet50.py"


def run(*words: str, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(JOB.parents[1]), "HOPSML_MLFLOW": "0", **variables}
    ended = subprocess.run(
        [sys.executable, str(JOB), *words], env=environment, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.fast
def test_dry_run_for_1024_workers_prints_the_published_plan() -> None:
    plan = run("hdfs:///data/imagenet", "--workers", "1024", "--dry-run")
    lines = {line.split("  ")[0]: line.split() for line in plan.splitlines() if line}
    assert lines["batch size"] == ["batch", "size", "256", "32768", "x", "128"]
    assert "12.8" in lines["learning rate"] and "3600" in lines["steps"]
    rates = {
        float(words[0]): [float(word) for word in words[1:]]
        for words in map(str.split, plan.splitlines())
        if _is_row(words)
    }
    assert rates[0] == [6.4, pytest.approx(0.009, abs=5e-4)]  # half of the scaled rate; RMSprop nearly alone
    assert rates[10] == [6.4, 0.5] and rates[12.5] == [6.4, 1.0]
    assert [rates[epoch][0] for epoch in (40, 70, 85)] == [0.96, 0.128, 0.0128]
    assert "node0 0-7, node1 8-15, node2 16-23, ..., node126 1008-1015, node127 1016-1023" in plan


def _is_row(words: list[str]) -> bool:
    return len(words) == 3 and all(word.replace(".", "").isdigit() for word in words)


@pytest.mark.variant
@pytest.mark.tensorflow
def test_imagenet_job_trains_some_steps_on_generated_images(tmp_path: Path) -> None:
    data = tmp_path / "imagenet"
    for folder, count in (("train", 12), ("validation", 4)):
        (data / folder).mkdir(parents=True)
        images = [
            {"image/encoded": jpeg(number), "image/class/label": 1 + number * 100 % 1000} for number in range(count)
        ]
        record_files.write(data / folder / f"{folder}-00000-of-00001.tfrecord", images)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "local.yaml").write_text("master: none\nlocal_slots: 2\n")
    home = {"HOPSML_CONF_DIR": str(tmp_path / "conf"), "HOPSML_PROJECT_URL": f"file://{tmp_path}/project"}
    words = ["--workers", "2", "--batch", "2", "--epochs", "2", "--size", "32", "--most-steps", "4"]
    summary = run(str(data), *words, HOPSML_PROFILE="local", **home)
    assert "(fp16)" in summary
    (status,) = tmp_path.glob("project/Experiments/*/status.json")
    one, other = json.loads(status.read_text())["workers"]
    assert one["step"] == other["step"] == 4
    assert one["metrics"] == other["metrics"], "the mean loss of both, and the accuracy on all judged images"
    assert np.isfinite(one["metrics"]["loss"]) and 0 <= one["metrics"]["accuracy"] <= 1


def jpeg(number: int) -> bytes:
    """Return a JPEG file with a few colours; the width depends on ``number``."""
    import io

    from PIL import Image

    colours = np.random.default_rng(number).integers(0, 255, (3, 3, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(colours).resize((40 + number, 48)).save(content, "JPEG")
    return content.getvalue()
