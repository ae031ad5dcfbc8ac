"""What is written without websockets' help is what websockets would have written."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode

from hopsml.cluster.driver.direct import framed

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 1_000_000])
def test_a_message_is_one_final_binary_frame_without_a_mask(length: int) -> None:
    content = bytes(range(256)) * (length // 256 + 1)
    content = content[:length]
    assert framed(content) == Frame(Opcode.BINARY, content).serialize(mask=False)
