"""The corners of the matrix of versions, oldest and newest of everything: parts of the contract in their environments."""

from __future__ import annotations

import pytest

from tools import version_matrix
from tools.version_matrix import CELLS, CORNERS, Cell, Unavailable

# Installing an environment may take minutes where uv's cache is empty.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.name in CORNERS], ids=lambda cell: cell.name)
def test_corner_of_the_supported_versions_fulfils_the_contract(cell: Cell) -> None:
    try:
        with version_matrix.exclusive_lock(cell.name):
            version_matrix.create_environment(cell)
            tests, problem = version_matrix.run_contract(cell, version_matrix.PLAYED_IN_CORNERS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert not problem and "passed" in tests, problem
