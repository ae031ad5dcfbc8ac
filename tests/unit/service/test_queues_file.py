"""Tests of the file of queues of a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.errors import ArgumentError
from hopsml.service import rules_files

pytestmark = pytest.mark.fast


def test_queues_file_is_loaded_with_the_default_queue(tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("research: {weight: 2, guaranteed: {gpus: 16}, limit: {gpus: 64}}\n")
    default, research = rules_files.load_queues(file)
    assert (default.name, research.name, research.weight, research.guaranteed.gpus) == ("default", "research", 2, 16)
    assert research.limit is not None and research.limit.gpus == 64
    file.write_text("")
    assert rules_files.load_queues(file) == rules_files.load_queues(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("research: {wieght: 2}", "research.wieght: Extra inputs"),
        ("research: {limit: {gpus: -1}}", "research.limit.gpus"),
        (
            "default: {}\na: [",
            "the file is not YAML: line 2: expected the node content, but found '<stream end>'; correct it",
        ),
        ("a: \udcff", "the file is not YAML: unacceptable character #x00ff: invalid start byte; correct it"),
        ("[a, b]", "valid dictionary"),
    ],
)
def test_invalid_queues_file_is_refused_with_the_option_and_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "queues.yaml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ArgumentError) as raised:
        rules_files.load_queues(file)
    assert message in str(raised.value) and f"--queues {file}: " in str(raised.value)
    with pytest.raises(ArgumentError, match="cannot be read"):
        rules_files.load_queues(tmp_path / "nowhere.yaml")
