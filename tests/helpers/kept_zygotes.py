"""Zygote that is shared by the tests of a process, so that TensorFlow is imported once.

Some thirty tests each start an application, whose zygote would import the same modules in three seconds of processor time.
Processes that a zygote forks belong to the requesting test, and count as its leaks if they remain.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hopsml.cluster.forking import zygote
from hopsml.cluster.forking.zygote import ZygoteProcess
from hopsml.core import processes
from tests.helpers import leaks

INSTALLED = {
    "keras",
    "numpy",
    "tensorflow",
    "tf_keras",
    "torch",
    "torch._dynamo",
    "torch.distributed.tensor",
}  # as ever


class KeptZygote(ZygoteProcess):
    """Zygote that survives its coordinator's close while it is healthy."""

    def close(self) -> None:
        """Close it only if it was killed or stopped."""
        if self._process.poll() is not None or processes.is_stopped(self.pid):
            self.end()

    def end(self) -> None:
        """Close it in any case."""
        super().close()

    @property
    def is_well(self) -> bool:
        """True if agents can still be forked from it."""
        return self._control.fileno() >= 0 and self._process.poll() is None


class KeptZygotes:
    """Replacement of ``ZygoteProcess`` that creates another zygote only for other imports."""

    def __init__(self) -> None:
        self.zygotes: dict[tuple[object, ...], KeptZygote] = {}

    def __call__(self, modules: tuple[str, ...], variables: Mapping[str, str] | None = None) -> ZygoteProcess:
        if not INSTALLED.issuperset(modules):
            return ZygoteProcess(modules, variables)
        environment = {**os.environ, **(variables or {})}
        read = sorted(
            name for name in environment if name.startswith(zygote.READ_AT_IMPORT) or name in zygote.READ_AT_START
        )
        key = (modules, os.environ.get("PYTHONPATH"), *((name, environment[name]) for name in read))
        kept = self.zygotes.get(key)
        if kept is None or not kept.is_well:
            with leaks.not_of_this_test():
                kept = self.zygotes[key] = KeptZygote(modules, variables)
        return kept

    def end(self) -> None:
        """End all zygotes."""
        for kept in self.zygotes.values():
            kept.end()
