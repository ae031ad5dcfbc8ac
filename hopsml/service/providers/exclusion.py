"""Draining by YARN: hosts in the ResourceManager's exclude file, which is read again after each change."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from hopsml.errors import ProviderError

SHOWN = 500


class YarnExclusion:
    """Hosts that YARN excludes.

    ``file`` is that of yarn.resourcemanager.nodes.exclude-path, which must be writable from here; ``refresh`` is the
    command that makes the ResourceManager read it.
    """

    def __init__(self, file: Path, refresh: Sequence[str], within_s: float) -> None:
        self._file, self._refresh, self._within_s = file, tuple(refresh), within_s
        # Hosts that the ResourceManager has read from the file; None if unknown: the process before this one may have
        # ended between writing the file and the refresh, or another server may have written it.
        self._told: list[str] | None = None

    def exclude(self, host: str) -> None:
        """Exclude a host: YARN starts no more containers there, and running ones continue."""
        self._change(lambda hosts: hosts if host in hosts else [*hosts, host])

    def admit(self, host: str) -> None:
        """Admit a host again, also after its node has ended, as another node may get its name."""
        self._change(lambda hosts: [each for each in hosts if each != host])

    def _change(self, change: Callable[[list[str]], list[str]]) -> None:
        """Change the list of hosts in the file, and refresh the ResourceManager. Raises ProviderError."""
        try:
            before = self._file.read_text().split() if self._file.exists() else []
            after = change(before)
            if after == before == self._told:
                return
            self._told = None
            fresh = self._file.with_name(f"{self._file.name}.new")
            fresh.write_text("".join(f"{host}\n" for host in after))
            os.replace(fresh, self._file)
            done = subprocess.run(
                self._refresh, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=self._within_s
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProviderError(
                f"YARN's exclude file {self._file}: {error}; correct `drain` of the nodes file"
            ) from error
        if done.returncode:
            raise ProviderError(
                f"{self._refresh[0]}: exit status {done.returncode}: {done.stderr.strip()[-SHOWN:]}; correct `refresh`"
            )
        self._told = after
