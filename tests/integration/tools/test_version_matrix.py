"""The corners of the matrix of versions, oldest and newest of everything: parts of the contract in their environments."""

from __future__ import annotations

import pytest

from tools import version_matrix
from tools.version_matrix import CELLS, CORNERS, Cell, Unavailable

# Installing an environment may take minutes where uv's cache is empty.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

# One test for each part of Spark, Python and the frameworks that differs by version; `make matrix` plays the others.
PLAYED = (
    "test_each_worker_contributes_and_the_chief_returns_a_value",
    "test_keras_trains_over_each_implementation",
    "test_torch_trains_with_data_parallelism[hopsml]",
    "test_jax_sums_over_the_devices_of_all_workers",
    "test_each_row_of_a_data_frame_is_trained_on_once",
    "test_elastic_group_continues_after_a_worker_is_killed",
    "test_search_finds_the_best_configuration",
    "test_submitted_script_trains",
    "test_doctor_finds_no_failure",
    "test_imported_hopsml_is_the_working_tree",
)


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.name in CORNERS], ids=lambda cell: cell.name)
def test_corner_of_the_supported_versions_fulfils_the_contract(cell: Cell) -> None:
    selected = [f"tests/matrix/test_contract.py::{test}" for test in PLAYED]
    try:
        tests, problem = version_matrix.run_contract(cell, selected)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert not problem and "passed" in tests, problem
