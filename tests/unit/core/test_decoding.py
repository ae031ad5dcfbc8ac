"""Tests of decoders of messages and records: one class of error for all invalid input."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from hopsml.cluster.agent import network
from hopsml.cluster.shared import protocol, worker_events
from hopsml.core.decoding import checked, understood
from hopsml.errors import ArgumentError, HopsmlError
from hopsml.search import messages as of_search
from hopsml.serving import messages as of_serving
from hopsml.training.data import frame_log, staged_rows

pytestmark = pytest.mark.fast

KIND = b"\x81\xa4kind"
DECODERS = [
    protocol.decode_for_coordinator, protocol.decode_for_agent, protocol.decode_for_group, worker_events.decode,
    network.decode_bootstrap, of_search.decode_for_lane, of_search.decode_for_driver, frame_log.decode_address,
    frame_log.decode_table, staged_rows.decode_fetch, staged_rows.decode_question, of_serving.decode_command,
    of_serving.decode_answer, of_serving.decode_for_agent, of_serving.decode_of_agent, of_serving.decode_settings,
]  # fmt: skip


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "content",
    [
        KIND + b"\xa1\xff",
        b"\x81\xa1\xff\x01",
        b'{"error": "\xff", "type": "\xff", "name": "\xff"}',
        b"\x91" * 5000,
        b"[" * 5000,
    ],
)
def test_content_that_is_not_utf8_or_nested_too_deeply_is_a_decode_error(
    decode: Callable[[bytes], object], content: bytes
) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode(content)


def test_valid_content_is_decoded_unchanged() -> None:
    assert checked(msgspec.json.Decoder(dict[str, int]).decode)(b'{"a": 1}') == {"a": 1}


def test_malformed_records_are_reported_and_errors_of_hopsml_pass() -> None:
    with pytest.raises(ArgumentError) as refused, understood("the records are", "delete them"):
        len(3)  # type: ignore[arg-type]
    assert str(refused.value).startswith("the records are not as hopsml writes them (TypeError: ")
    with pytest.raises(HopsmlError, match=r"^own$"), understood("the records are", "delete them"):
        raise ArgumentError("own")
