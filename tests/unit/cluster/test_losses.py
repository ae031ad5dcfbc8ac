"""Record of lost workers of a run that continues: step and cause of each, and the step of its replacement."""

from __future__ import annotations

from typing import Any

import pytest

from hopsml.cluster.driver import run_state
from hopsml.cluster.driver.run_state import Losses
from hopsml.tracking import listing

pytestmark = pytest.mark.fast


def test_worker_that_joins_replaces_the_first_lost_one_without_replacement() -> None:
    losses = Losses()
    losses.record_restart(3, -1)
    losses.record_lost([(1, "killed"), (2, "its agent was lost")], 160)
    losses.record_joined(1, 185)
    assert losses.entries == [
        {"rank": 1, "step": 160, "cause": "killed", "replaced": True, "replaced_at": 185},
        {"rank": 2, "step": 160, "cause": "its agent was lost", "replaced": False, "replaced_at": None},
    ]
    losses.record_restart(2, 200)
    assert not losses.entries[1]["replaced"], "those who were left start again, and nobody else"
    losses.record_restart(3, 240)
    assert losses.entries[1]["replaced_at"] == 240


@pytest.mark.parametrize(("size", "replaced"), [(2, True), (1, False)])
def test_worker_lost_with_its_generation_is_replaced_if_the_next_one_has_as_many(size: int, replaced: bool) -> None:
    losses = Losses()
    losses.record_restart(2, -1)
    losses.record_lost([(0, "killed")], 30, restarts=True)
    losses.record_restart(size, 20)
    assert (losses.entries[0]["replaced"], losses.entries[0]["replaced_at"]) == (replaced, 20 if replaced else None)


def test_record_of_losses_has_bounded_size() -> None:
    losses = Losses()
    losses.record_lost([(rank, "killed") for rank in range(2 * run_state.MOST_LOSSES)], 1)
    assert len(losses.entries) == run_state.MOST_LOSSES and losses.entries[-1]["rank"] == 2 * run_state.MOST_LOSSES - 1


@pytest.mark.parametrize(
    ("recorded", "texts"),
    [
        (None, []),
        ("odd", []),
        ([3, {}], ["rank None was lost (-), not replaced"]),
        (
            [{"rank": 1, "step": 160, "cause": "killed", "replaced": True, "replaced_at": 185}],
            ["rank 1 was lost at step 160 (killed), replaced at step 185"],
        ),
        ([{"rank": 1, "step": None, "cause": "killed", "replaced": True}], ["rank 1 was lost (killed), replaced"]),
    ],
)
def test_losses_are_shown_as_text_and_older_records_have_none(recorded: Any, texts: list[str]) -> None:
    assert listing.loss_texts(recorded) == texts
