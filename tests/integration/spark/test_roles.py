"""Contract of roles for agents that are tasks of real executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.cluster.roles_contract import PLAYS

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "play",
    [PLAYS[0], *(pytest.param(play, marks=pytest.mark.variant) for play in PLAYS[1:])],  # as on local agents
    ids=lambda play: play.__name__,
)
def test_role_contract_holds_on_spark(store: Path, tmp_path: Path, play: Callable[[Path], None]) -> None:
    play(tmp_path)
