"""Contract of backends for agents that are tasks of real executors."""

from __future__ import annotations

import pytest

from tests.helpers.cluster.backend_contract import BackendContract

pytestmark = pytest.mark.spark


class TestSpark(BackendContract):
    slots = 4
