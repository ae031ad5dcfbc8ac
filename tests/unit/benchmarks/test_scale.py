"""Tests of a small coordinator benchmark: agents connect, pass the preflight, get an assignment, send heartbeats."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode

from benchmarks import light_agents, scale
from hopsml.cluster.driver.preflight.gate import Inspection
from hopsml.cluster.shared.protocol import PeerProbed, PreflightFacts

pytestmark = pytest.mark.fast


def test_websocket_frames_are_decoded_from_pieces():
    contents = [bytes(length) for length in (0, 1, 125, 126, 65535, 65536)]
    read, found = bytearray(), []
    for byte in b"".join(Frame(Opcode.BINARY, content).serialize(mask=False) for content in contents):
        read.append(byte)
        if (content := light_agents.unframed(read)) is not None:
            found.append(content)
    assert found == contents and not read


def test_coordinator_benchmark_starts_a_small_group(monkeypatch):
    received: list[type] = []
    original = Inspection.message_received

    def noted(self, session, message):
        received.append(type(message))
        original(self, session, message)

    monkeypatch.setattr(scale, "AGENTS", 8)
    monkeypatch.setattr(scale, "BEATING_S", 0.3)
    monkeypatch.setattr(Inspection, "message_received", noted)
    one = scale.one_round()
    assert one.formed_s == pytest.approx(one.connected_s + one.assigned_s)
    assert one.connected_s > 0 and one.assigned_s > 0  # it starts before any agent is connected
    assert one.agents_processor_s > 0
    assert (
        received.count(PreflightFacts) == 8 and received.count(PeerProbed) >= 8
    )  # each with its neighbour in the ring
