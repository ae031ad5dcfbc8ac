"""Detects a search that cannot succeed: all its trials fail with the same error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Two messages are the same error although they name their own numbers and addresses.
_PARTICULAR = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")


class Futility:
    """Counts the failures at the begin of a search for as long as all trials fail with the same error.

    A typo in the function must not burn a thousand trials; but one success, or two kinds of failure, and no
    conclusion is drawn any more: then it may be the configurations.
    """

    def __init__(self) -> None:
        self.count = 0
        self.error = ""
        self._shape = ""
        self._mixed = False

    def failed(self, error: str) -> None:
        """Count a trial that has failed for good. Numbers in ``error`` do not make it another error."""
        shape = _PARTICULAR.sub("#", error)
        if self._mixed or (self.count and shape != self._shape):
            self.mixed()
            return
        self.count += 1
        self._shape, self.error = shape, self.error or error

    def mixed(self) -> None:
        """A trial has given a value: failures are no longer counted."""
        self._mixed, self.count = True, 0

    def hopeless(self, lanes: int) -> bool:
        """Whether all trials so far failed with the same error, at least 3 and twice as many as ``lanes``."""
        return self.count >= 3 and self.count >= 2 * lanes

    def state(self) -> dict[str, Any]:
        """The counts as JSON values, for ``restore``."""
        return {"count": self.count, "error": self.error, "mixed": self._mixed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from another instance's ``state()``."""
        self.count, self.error, self._mixed = state["count"], state["error"], state["mixed"]
        self._shape = _PARTICULAR.sub("#", self.error)
