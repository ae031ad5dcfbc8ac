"""The contract of backends, held by agents that are ordinary tasks of real executors."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.cluster.backend_contract")

from tests.cluster.backend_contract import BackendContract  # noqa: E402

pytestmark = pytest.mark.spark


class TestSpark(BackendContract):
    slots = 4
