"""The benchmark of the coordinator, small: its agents connect, pass the preflight, get their assignment and beat."""

from __future__ import annotations

import pytest

from benchmarks import scale
from hopsml.cluster.preflight.inspection import Inspection
from hopsml.cluster.protocol import PeerProbed, PreflightFacts

pytestmark = pytest.mark.fast


def test_a_small_group_is_formed(monkeypatch):
    said: list[type] = []
    told = Inspection.said

    def noted(self, session, message):
        said.append(type(message))
        told(self, session, message)

    monkeypatch.setattr(scale, "AGENTS", 8)
    monkeypatch.setattr(scale, "BEATING_S", 0.3)
    monkeypatch.setattr(Inspection, "said", noted)
    one = scale.one_round()
    assert one.formed_s == pytest.approx(one.connected_s + one.assigned_s)
    assert one.connected_s > 0 and one.assigned_s > 0  # it begins before anybody is connected
    assert said.count(PreflightFacts) == 8 and said.count(PeerProbed) >= 8  # each with its neighbour in the ring
