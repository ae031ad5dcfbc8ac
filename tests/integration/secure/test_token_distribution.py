"""Tests of delegation tokens in runs on this machine, against a Kerberized HDFS whose tokens last for 15 s."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml.core import delegation_tokens as tokens
from hopsml.errors import RunError
from hopsml.storage.filesystem import for_url
from tests.helpers import tokens as test_tokens
from tests.helpers.clock import WAIT_S, wait_until
from tests.helpers.secrets_found import of_processes, of_store, secrets_found
from tests.helpers.storage.token_runs import LIFE_S, missing_bytes, start, token_file

pytestmark = pytest.mark.hadoop
__all__ = ["token_file"]


def test_run_outlives_its_first_tokens_several_times(secure_hdfs: Any, token_file: Path, tmp_path: Path) -> None:
    """Worker, child, mirror and driver store all their files, although each token lasts for a third of the run."""
    given: dict[str, bytes] = {}  # passwords of all tokens, in hexadecimal digits
    with test_tokens.renewing(secure_hdfs, token_file, LIFE_S / 3):
        run, folder = start(secure_hdfs, tmp_path, with_child=True)
        began = time.monotonic()
        shown: dict[str, bytes] = {}
        for life in (1, 2, 3):
            wait_until(
                lambda life=life: time.monotonic() - began > life * LIFE_S or not run.running(),
                f"{life} lives", 2 * LIFE_S + WAIT_S,
            )  # fmt: skip
            earlier = len(for_url(folder).list_dir(folder))
            wait_until(lambda n=earlier: len(for_url(folder).list_dir(folder)) > n or not run.running(), "a later file")
            given |= {token.password.hex(): token.password for token in tokens.read(token_file).tokens}
            shown |= of_processes()
        (tmp_path / "stop").touch()
        run.result(WAIT_S)
        assert missing_bytes(tmp_path, folder, child=True) == 0
        log = for_url(run.run_dir).read_bytes(f"{run.run_dir}/logs/g0-rank0.log").decode()
        status = for_url(run.run_dir).read_bytes(f"{run.run_dir}/status.json").decode()
        kept = of_store(run.run_dir)
    found = secrets_found(kept, shown, secrets=list(given.values()))
    assert len(given) >= 3 and found == {}
    values = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    for value in values:
        assert value["mode"] == 0o600 and value["path"] != str(token_file)
    assert len({value["path"] for value in values}) == 2, "each agent has its own file"
    assert f"file {values[0]['count']}" in log
    assert '"FINISHED"' in status


def test_run_whose_tokens_nobody_renews_fails_with_the_cause(
    secure_hdfs: Any, token_file: Path, tmp_path: Path
) -> None:
    """The counterpart: without new tokens the same run cannot store its files."""
    tokens.write(token_file, test_tokens.obtain(secure_hdfs))
    run, _ = start(secure_hdfs, tmp_path)
    with pytest.raises(RunError, match="the delegation token is expired or unknown"):
        run.result(6 * LIFE_S + WAIT_S)
