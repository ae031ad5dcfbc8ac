"""Worker process of a test group: sets the context as hopsml does, runs one job, writes its result."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from hopsml.cluster.worker.context import WorkerContext, set_current


def main(specification: Path) -> None:
    """Run the job of the specification."""
    _die_with_parent()
    faulthandler.register(signal.SIGUSR1)  # the group requests stacks at its timeout
    spec = json.loads(specification.read_text())
    context, sent = make_context(spec)
    set_current(context)
    module, _, function = spec["job"].partition(":")
    result = getattr(importlib.import_module(f"tests.helpers.training.jobs.{module}"), function)(**spec["arguments"])
    result = {**(result or {}), "sent": sent}
    (Path(spec["folder"]) / f"result-{spec['rank']}.json").write_text(json.dumps(result))


def _die_with_parent() -> None:
    """Let the kernel end this process with the test session."""
    parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


def make_context(spec: dict[str, Any]) -> tuple[WorkerContext, list[dict[str, Any]]]:
    """Return the context of this rank, and the list of its messages to the driver."""
    folder, rank = Path(spec["folder"]), spec["rank"]
    sent: list[dict[str, Any]] = []
    overrides = dict(spec["arguments"].pop("context", {}))
    overrides |= {name: Path(overrides[name]) for name in ("resume_checkpoint", "resume_fits") if name in overrides}
    folders = {name: folder / name for name in ("events", "checkpoints", "export")}
    # Each rank has a separate work folder; the others are shared, as on one host.
    for path in (*folders.values(), folder / f"work-{rank}"):
        path.mkdir(parents=True, exist_ok=True)
    return (
        WorkerContext(
            **{
                "run_id": "test",
                "generation": 0,
                "rank": rank,
                "world_size": spec["world_size"],
                "local_rank": rank,
                "role": "chief" if rank == 0 else "worker",
                "run_url": str(folder),
                "work_dir": folder / f"work-{rank}",
                "events_dir": folders["events"],
                "checkpoint_dir": folders["checkpoints"],
                "export_dir": folders["export"],
                "leader": spec["addresses"][0],
                "send": sent.append,
                **overrides,
            }
        ),
        sent,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
