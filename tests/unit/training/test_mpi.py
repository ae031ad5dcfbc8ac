"""Tests of MPI programs on hosts where Hydra is missing or fails at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.errors import ArgumentError
from hopsml.training import mpi

pytestmark = pytest.mark.fast


def test_missing_or_failing_hydra_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ArgumentError, match=r"needs mpiexec\.hydra of MPICH on each node.*apt-get install mpich"):
        mpi.run_ranks(["true"], "true", {}, tmp_path)
    hydra = tmp_path / "mpiexec.hydra"
    hydra.write_text("#!/bin/sh\necho unknown option >&2\nexit 4\n")
    hydra.chmod(0o700)
    with pytest.raises(ArgumentError, match=r"mpiexec\.hydra has ended with status 4 before it had started"):
        mpi.run_ranks(["true"], "true", {}, tmp_path)
