"""Tests of a followed log: resumes at its position, ends with its job, and drops terminal sequences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cli.terminal import RESET, without_control_sequences
from hopsml.core import log_stream
from hopsml.errors import ServiceError
from hopsml.service.rest.event_stream import encode_event

pytestmark = pytest.mark.fast

HELLO = encode_event("0", "hello", {"application": "a1"})


def lines(*stream: bytes) -> list[bytes]:
    return [line + b"\n" for line in b"".join(stream).split(b"\n")[:-1]]


class Server:
    """Server that answers one connection after the other; an exception ends its connection."""

    def __init__(self, *answers: list[bytes] | Exception) -> None:
        self.answers, self.requests, self.now = list(answers), list[tuple[str, str]](), 0.0

    def opens(self, query: Mapping[str, Any], last: str) -> AbstractContextManager[Iterable[bytes]]:
        self.requests.append((query["application"], last))
        answer = self.answers.pop(0) if self.answers else ConnectionRefusedError("refused")
        if isinstance(answer, Exception):
            raise answer
        return nullcontext(answer)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def follow(self) -> list[str]:
        return list(log_stream.follow_log(self.opens, "", pause=self.sleep, clock=lambda: self.now))


def test_log_stream_resumes_at_its_position_and_ends_with_the_job() -> None:
    one = encode_event("4", "log", {"text": "one\n", "offset": 0})
    two = encode_event("8", "log", {"text": "two\n", "offset": 4})
    cut = lines(HELLO, b": still here\n\n", one, two)[:-1]  # an event whose end never came is not taken
    server = Server(
        cut,
        ConnectionResetError("away"),
        lines(encode_event("4", "hello", {"application": "a1"}), two),
        lines(encode_event("8", "reset", {"application": "a2"}), one, encode_event("4", "end", {"state": "FINISHED"})),
    )
    assert server.follow() == ["one\n", "two\n", "one\n"]
    assert server.requests == [("", ""), ("a1", "4"), ("a1", "4"), ("a1", "8")]


@pytest.mark.parametrize("data", [b"[]", b"3", b"{}", b'"x"', b"[" * 100_000, b"{\xff}"])
def test_event_without_the_expected_values_counts_as_a_broken_stream(data: bytes) -> None:
    broken = b"id: 1\nevent: log\ndata: " + data + b"\n\n"
    end = encode_event("4", "end", {})
    server = Server(lines(HELLO, broken), lines(HELLO, end))
    assert server.follow() == []
    endless = Server(*[lines(HELLO, broken)] * 200)
    with pytest.raises(ServiceError, match=r"no longer answers.*cannot be read"):
        endless.follow()
    assert endless.answers and endless.now == log_stream.PATIENCE_S


def test_unreachable_server_is_reported_and_one_without_streams_is_distinguished() -> None:
    server = Server(lines(HELLO))
    with pytest.raises(ServiceError, match=r"refused.*the job continues"):
        server.follow()
    assert server.now == log_stream.PATIENCE_S
    with pytest.raises(log_stream.StreamUnavailable):
        Server(log_stream.StreamUnavailable()).follow()
    with pytest.raises(ServiceError, match="no longer has this stream"):
        Server(lines(HELLO), *[log_stream.StreamUnavailable()] * 200).follow()


HARMFUL = {
    "cursor": "\x1b[2J\x1b[1;1H\x1b[?1049h",
    "title": "\x1b]0;a title\x07\x1b]2;another\x1b\\",
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "eight bits": "\x9d52;c;cm0gLXJm\x9c\x9b2J",
    "programs": "\x1bP+q544e\x1b\\\x1b_x\x1b\\\x1b^y\x1b\\",
    "character sets": "\x1b(0\x0e\x0f\x1bc\x1b#8",
    "bell": "\x07\x08\x7f",
    "cut": "\x1b[12\x1b]0;no end\x1b[2K",
}


@pytest.mark.parametrize("harmful", HARMFUL.values(), ids=HARMFUL)
@given(st.integers(1, 40))
def test_terminal_sequences_are_removed_wherever_they_are_split(harmful: str, length: int) -> None:
    text = f"begin {harmful}middle\t10 %\r20 % ü𝄞\n{harmful}"
    pieces = [text[at : at + length] for at in range(0, len(text), length)]
    assert "".join(without_control_sequences(pieces)) == "begin middle\t10 %\r20 % ü𝄞\n"


def test_colours_are_retained_and_reset_at_the_end_of_the_log() -> None:
    assert "".join(without_control_sequences(["\x1b[1;3", "1mred\n", "plain"])) == "\x1b[1;31mred\nplain" + RESET
    assert "".join(without_control_sequences(["\x1b]0;" + "x" * 100_000, "\nnext\n"])).endswith("\nnext\n"), (
        "it swallows no later line"
    )


@settings(max_examples=40)
@given(st.lists(st.text("\x1b[]P\\mHx;0 \x07\n\x9b\x9d?", max_size=8)))
def test_no_sequence_start_other_than_colours_remains(pieces: list[str]) -> None:
    shown = "".join(without_control_sequences(pieces))
    for colour in ("\x1b[m", "\x1b[0m", *(f"\x1b[{'0' * count}m" for count in range(2, 30))):
        shown = shown.replace(colour, "")
    while "\x1b[" in shown and (end := shown.find("m", shown.index("\x1b["))) > 0:
        begin = shown.index("\x1b[")
        assert set(shown[begin + 2 : end]) <= set("0123456789;:"), shown
        shown = shown[:begin] + shown[end + 1 :]
    assert not set(shown) & set("\x1b\x07\x9b\x9d"), json.dumps(shown)
