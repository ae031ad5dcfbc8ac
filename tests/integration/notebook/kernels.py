"""Real kernels as a notebook server starts them: run, interrupt and kill cells, and record their output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
import pytest

from tests.helpers import clock

ROOT = Path(__file__).parents[3]
WAIT_S = 60.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Cell:
    """Execution of a cell: its displays by id (all their states), its printed text, and its outcome."""

    message_id: str
    displays: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    results: list[dict[str, str]] = field(default_factory=list)
    text: str = ""
    error: str = ""
    message: str = ""
    traceback: str = ""  # as it is shown, without its colours
    is_over: bool = False

    def take(self, message: dict[str, Any]) -> None:
        """Record a message of this cell."""
        content = message["content"]
        match message["msg_type"]:
            case "display_data" | "update_display_data":
                name = content.get("transient", {}).get("display_id", "")
                self.displays.setdefault(name, []).append(content["data"])
            case "execute_result":
                self.results.append(content["data"])
            case "stream":
                self.text += content["text"]
            case "error":
                self.error, self.message = content["ename"], content["evalue"]
                self.traceback = _COLOUR.sub("", "\n".join(content["traceback"]))
            case "status" if content["execution_state"] == "idle":
                self.is_over = True

    @property
    def display(self) -> list[str]:
        """Return all states of the only updated display, as text."""
        (states,) = [states for name, states in self.displays.items() if name]
        return [state["text/plain"] for state in states]


class Kernel:
    """A kernel with its client."""

    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(ROOT), env={**os.environ, "TMPDIR": str(temporary_folder())})
        self.cells: dict[str, Cell] = {}
        self.connect()

    def connect(self) -> None:
        """Connect a new client, as a front end that is opened."""
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(WAIT_S)

    @property
    def pid(self) -> int:
        """Process id of the kernel."""
        return int(self.manager.provisioner.pid)

    def begin(self, code: str) -> Cell:
        """Send a cell without waiting for it."""
        cell = Cell(self.client.execute(code, store_history=True))
        self.cells[cell.message_id] = cell
        return cell

    def run(self, code: str) -> Cell:
        """Send a cell and wait for its end."""
        return self.until(cell := self.begin(code), lambda: cell.is_over)

    def until(self, cell: Cell, is_reached: Any, timeout_s: float = WAIT_S) -> Cell:
        """Read messages of the kernel until a condition holds."""
        deadline = clock.awake() + timeout_s
        while not is_reached():
            try:
                message = self.client.get_iopub_msg(timeout=0.1)
            except Empty:
                assert clock.awake() < deadline, f"not within {timeout_s:g} s; {cell}"
                continue
            if known := self.cells.get(message["parent_header"].get("msg_id", "")):
                known.take(message)
        return cell

    def interrupt(self) -> None:
        """Interrupt the kernel, as the stop button does."""
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        """kill -9."""
        psutil.Process(self.pid).kill()
        self.manager.provisioner.process.wait(WAIT_S)

    def restart(self) -> None:
        """Start a new kernel in place of an ended one."""
        self.client.stop_channels()
        self.manager.start_kernel(cwd=str(ROOT), env={**os.environ, "TMPDIR": str(temporary_folder())})
        self.connect()

    def close(self) -> None:
        """End the kernel, in order if it is running."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=not self.manager.is_alive())
        self.manager.cleanup_resources()


def temporary_folder() -> Path:
    """Return the kernels' temporary folder, separate from this process's, in which their agents would count as leaks."""
    return Path(os.environ["IPYTHONDIR"]).parent / "tmp"


@contextmanager
def environment(folder: Path) -> Iterator[Path]:
    """Set the environment of test kernels: the local profile with two slots, and files only in ``folder``."""
    conf = folder / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text("master: none\nlocal_slots: 2\n")
    project = folder / "project"
    (folder / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "HOPSML_CONF_DIR": conf,
            "HOPSML_PROJECT_URL": f"file://{project}",
            "JUPYTER_RUNTIME_DIR": folder / "runtime",
            "IPYTHONDIR": folder / "ipython",
            "PYTHONPATH": ROOT,
        }.items():
            patch.setenv(name, str(value))
        for name in ("HOPSML_PROFILE", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "HOPSML_PROGRESS", "TENSORBOARD_PROXY_URL"):
            patch.delenv(name, raising=False)
        yield project


@contextmanager
def kernel() -> Iterator[Kernel]:
    """Start a kernel and end it after the block."""
    started = Kernel()
    try:
        yield started
    finally:
        started.close()
