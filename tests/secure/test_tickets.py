"""Runs on this machine whose only credential is a ticket for a Kerberized HDFS: it expires, is deleted, or is renewed."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopsml.errors import HopsmlError
from hopsml.storage import left_files
from hopsml.storage.filesystem import for_url
from tests.helpers.clock import END_S, WAIT_S, wait_until
from tests.helpers.storage.token_runs import finish, notes, start, stored, ticket_cache

pytestmark = pytest.mark.secure
__all__ = ["ticket_cache"]

TICKET_S = 20


@pytest.mark.parametrize("end", ["expired", "destroyed"])
def test_run_without_its_ticket_fails_with_the_cause_and_names_the_copies_of_its_files(
    end: str, secure_hdfs: Any, ticket_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPSML_STORAGE_RETRY_S", "2")
    secure_hdfs.kdc.kinit("alice", ticket_cache)
    run, folder = start(secure_hdfs, tmp_path)
    wait_until(lambda: stored(folder, 2), "the first files")
    if end == "expired":
        secure_hdfs.kdc.kinit("alice", ticket_cache, life_s=TICKET_S)
    else:
        ticket_cache.unlink()
    with pytest.raises(HopsmlError, match="no valid Kerberos ticket or token; run `kinit`"):
        run.result(END_S)
    copies = sorted(Path(tempfile.gettempdir()).glob(f"{left_files.PREFIX}*"))
    assert all(str(copy) in notes(run) for copy in copies)
    status = status_of(run, copies)
    assert status["state"] == "FAILED" and "no valid Kerberos ticket" in status["cause"]
    missing = [path.partition(": ")[0] for rank in status["not_on_shared_storage"].values() for path in rank]
    assert all(any((copy / path).is_file() for copy in copies) for path in missing), "each is in a copy"


def status_of(run: Any, copies: list[Path]) -> Any:
    """Return the final state of a run: open connections outlive the ticket, so that the driver may have stored it."""
    local = [path for copy in copies for path in copy.rglob("status.json")]
    if local:
        return json.loads(local[0].read_text())
    return json.loads(for_url(run.run_dir).read_bytes(f"{run.run_dir}/status.json"))


@contextmanager
def renewed(cluster: Any, cache: Path, every_s: float) -> Iterator[list[float]]:
    """Renew the ticket of a cache (``kinit -R``) every so many seconds; yield the times at which it was done."""
    stop, times = threading.Event(), list[float]()

    def renew() -> None:
        while not stop.wait(every_s):
            cluster.kdc._tool("kinit", "-R", "-c", f"FILE:{cache}")
            times.append(time.monotonic())

    thread = threading.Thread(target=renew, name="renewed-ticket")
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join()


def test_ticket_that_is_renewed_in_time_suffices(secure_hdfs: Any, ticket_cache: Path, tmp_path: Path) -> None:
    secure_hdfs.kdc.kinit("alice", ticket_cache, life_s=TICKET_S, renewable_s=3600)
    with renewed(secure_hdfs, ticket_cache, TICKET_S / 4) as times:
        run, folder = start(secure_hdfs, tmp_path)
        began = time.monotonic()
        wait_until(
            lambda: time.monotonic() - began > 3 * TICKET_S or not run.running(), "three lives", 3 * TICKET_S + WAIT_S
        )
        finish(run, tmp_path, folder)
    assert len(times) >= 5
