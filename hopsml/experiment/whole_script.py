"""Run a program written for ``torchrun`` or similar launchers: each worker runs it as its main module."""

from __future__ import annotations

import linecache
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args

from hopsml.cluster.shared.spec import TorchBackend
from hopsml.core import tracebacks
from hopsml.errors import ArgumentError
from hopsml.experiment.collective import distributed, jax, torch
from hopsml.experiment.result import Result

VERBS: Final = {"torch": torch, "jax": jax, "distributed": distributed}
_DRIVER = '''"""The driver of {name}, which runs on every worker: made by hopsml submit --framework {framework}."""

import sys

from hopsml.experiment.whole_script import run

SOURCE = {source!r}

if __name__ == "__main__":
    run({framework!r}, {name!r}, SOURCE, sys.argv[1:], {beside!r}, {backend!r})
'''


def write_driver(framework: str, script: Path, folder: Path, backend: str = "auto") -> Path:
    """Write into ``folder`` a program that runs ``script`` on every worker, and that contains the script's text.

    Raises:
        ArgumentError: The ``framework`` does not have this ``backend``.
    """
    known = get_args(TorchBackend) if framework == "torch" else ("auto",)
    if backend not in known:
        raise ArgumentError(
            f"--torch-backend {backend} of --framework {framework}: it must be one of {', '.join(known)}"
        )
    path = folder / script.name
    beside = str(script.resolve().parent)
    text = _DRIVER.format(
        framework=framework, name=script.name, source=script.read_text(), beside=beside, backend=backend
    )
    path.write_text(text)
    return path


def run(
    framework: str, name: str, source: str, arguments: Sequence[str], beside: str = "", backend: str = "auto"
) -> Result:
    """Run a program on all workers, one for each GPU or slot of the executors; prints the run's summary.

    Args:
        framework: one of ``VERBS``.
        name: file name of the program.
        source: text of the program.
        arguments: command-line arguments, for the program's ``sys.argv``.
        beside: folder of the program: workers that can read it import modules from it; otherwise use ``--py-files``.
        backend: backend of torch's process group, as in ``experiment.torch``.

    Raises:
        Exception: The errors of ``experiment.torch``; an uncaught one of hopsml's is shown without the driver's frames.
    """
    tracebacks.add_generated(sys._getframe(1).f_code.co_filename)
    given = {"name": name, "source": source, "arguments": list(arguments), "beside": beside}
    wishes: dict[str, Any] = {"backend": backend} if framework == "torch" else {}
    result = VERBS[framework](_as_main_module, name=Path(name).stem, args=given, **wishes)
    print(result.summary())
    return result


def _as_main_module(name: str, source: str, arguments: list[str], beside: str = "") -> None:
    """Run the program in a worker as the main module.

    Its file is the submitted one if this host can read it, so that ``__file__`` leads to the files beside it; otherwise a
    copy, which a traceback and processes that the program starts can read.
    """
    from hopsml.cluster.worker import returned
    from hopsml.cluster.worker.context import current

    here = context.work_dir if (context := current()) is not None else None
    if beside and Path(beside).is_dir():
        sys.path.insert(0, beside)  # as Python does for a script's folder
    submitted = Path(beside, name)
    if beside and _has_text(submitted, source):
        returned.script_folders[:] = [submitted.parent]
        _run_main_module(submitted, source, arguments)
        return
    # In the worker's own folder, which its agent removes, however the program ends.
    with tempfile.TemporaryDirectory(prefix="script-", dir=here) as folder:
        path = Path(folder, name)
        path.write_text(source)
        returned.script_folders[:] = [path.parent]
        _run_main_module(path, source, arguments)


def _has_text(path: Path, text: str) -> bool:
    """Return True if this is a file that can be read, with this text."""
    try:
        return path.read_text() == text
    except (OSError, UnicodeDecodeError):
        return False


def _run_main_module(path: Path, source: str, arguments: Sequence[str]) -> None:
    """Run a program as ``__main__``, as ``runpy`` does, but without frames of ``runpy`` in its tracebacks."""
    linecache.cache[str(path)] = len(source), None, source.splitlines(True), str(path)  # its traceback is read later
    sys.argv = [str(path), *arguments]
    module, before = ModuleType("__main__"), sys.modules["__main__"]
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    finally:
        sys.modules["__main__"] = before
