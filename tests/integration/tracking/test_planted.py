"""Tests that local runs store and print no planted secret, and that other users cannot read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.secrets_found import of_store
from tests.helpers.tracking import planted

pytestmark = pytest.mark.local


def test_run_files_and_output_contain_no_planted_secret(tmp_path: Path) -> None:
    project = tmp_path / "project"
    done = planted.run(tmp_path / "code", f"file://{project}", {})
    assert done.returncode == 0, done.stderr
    assert planted.leaks({"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}) == {}
    assert "cannot log in as (redacted)" in done.stderr
    files = of_store(str(project))
    names = {Path(name).name for name in files}
    assert {"function.pickle", "script.py", "git.diff", "search.pickle", "environment.json", "worker.json"} <= names
    assert {"trials.parquet", ".outputs.json", "inputs.jsonl", "metrics.jsonl", "status.json", "trial.json"} <= names
    assert planted.leaks(files) == {}
    assert planted.open_to_others(str(project)) == []


def test_leak_detector_finds_planted_secrets() -> None:
    import base64
    import gzip
    import pickle

    files = {
        "a.json": b"x s3cr3t y",
        "b.pickle": pickle.dumps({"k": "a s3cr3t"}, protocol=5),
        "c.gz": gzip.compress(b"s3cr3t"),
        "d": "s3cr3t".encode("utf-16-le"),
        "e": b"s3cr3",
        "f": base64.b64encode(b"x s3cr3t y"),
        "g": base64.urlsafe_b64encode(b"xy s3cr3t"),
        "h": b"s3cr3t-1".hex().encode(),
        "i": b"s%2Fby%20value",
        "j": b"s3cr3t%2Fby%20value%26s3cr3t".replace(b"s3cr3t", b"s3cr%33t"),
    }
    found = {name.partition(":")[0] for name in planted.leaks(files)}
    assert found == {"a.json", "b.pickle", "c.gz", "d", "f", "g", "h"}
