"""Last records of a run: its final status, and writing with retries while storage is unavailable or full."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from hopsml.cluster.shared.plain import as_json
from hopsml.errors import QuotaExceeded
from hopsml.storage import backoff, causes

PATIENCE_S = 15.0  # less than the silence after which another driver may continue the run (sign_of_life.WATCH_S)
_FIRST_S, _LONGEST_S = 0.5, 4.0


def status(run_id: str, state: str, began: float | None, error: str = "", **more: Any) -> dict[str, Any]:
    """Return ``status.json`` of a run that ends now; ``began``: seconds since the epoch, None if unknown."""
    now = time.time()
    return {
        "run_id": run_id,
        "state": state,
        "ended": now,
        "seconds": None if began is None else round(now - began, 3),
        "error": as_json(error),
        "workers": [],
        "not_on_shared_storage": {},
        **more,
    }


def write(
    records: Mapping[str, Callable[[], object]], tell: Callable[[str], None], patience_s: float
) -> dict[str, str]:
    """Call functions that write records, in order; return those that failed, with reasons. Raises nothing.

    Args:
        records: functions that write a record, by the record's name.
        tell: called once with a message when writing is tried again.
        patience_s: seconds for which writing is tried again while storage is unavailable or full.
    """
    left, failed = dict(records), dict[str, str]()
    deadline, rounds = time.monotonic() + patience_s, 0
    while left:
        passing: dict[str, Exception] = {}
        for name, record in left.items():
            try:
                record()
            except Exception as error:  # noqa: BLE001 the run has ended, whether or not its records can be written
                if causes.is_transient(error) or isinstance(error, QuotaExceeded):
                    passing[name] = error
                else:
                    failed[name] = f"{type(error).__name__}: {error}"
        rounds += 1
        left = {name: left[name] for name in passing}
        pause_s = backoff.pause_s(rounds, _FIRST_S, _LONGEST_S)
        if time.monotonic() + pause_s > deadline:
            return {**failed, **{name: str(error) for name, error in passing.items()}}
        if left:
            if rounds == 1:
                first = next(iter(passing.values()))
                tell(f"{' and '.join(left)} cannot be written, which is tried again for {patience_s:g} s: {first}")
            time.sleep(pause_s)
    return failed


def words(unrecorded: Mapping[str, str]) -> str:
    """Return a sentence on missing records: names, reason and consequences. ``unrecorded`` must not be empty."""
    text = f"{' and '.join(unrecorded)} could not be written: {next(iter(unrecorded.values()))}"
    if ".outputs.json" in unrecorded:
        text += "; what the function returned is in the caller's hands alone"
    if "status.json" in unrecorded:
        text += "; `hopsml runs ls` cannot know how the run ended"
    return text
