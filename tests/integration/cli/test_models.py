"""``hopsml models``: the registry from a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hopsml import model
from tests.helpers.command_line import Cli

pytestmark = pytest.mark.local


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}/project")
    monkeypatch.setenv("HOPSML_MLFLOW", "0")
    (tmp_path / "weights.bin").write_bytes(b"w" * 2000)
    return str(tmp_path / "weights.bin")


def test_models_commands_export_alias_show_and_delete_versions(cli: Cli, weights: str) -> None:
    assert cli("models", "ls").err.startswith("no models in file://")
    for accuracy in ("0.9", "0.8"):
        made = cli(
            "models", "export", weights, "digits", "--metric", f"accuracy={accuracy}", "--description", "by hand"
        )
    assert made.out.split()[:2] == ["version", "2"] and made.status == 0
    assert cli("models", "alias", "digits", "best", "production").out == "digits: production is version 1\n"
    listed = cli("models", "ls", "digits").out.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [["digits", "1", "production"], ["digits", "2", "-"]]
    assert "2 kB" in listed[1] and "accuracy=0.9" in listed[1]
    assert [one["version"] for one in json.loads(cli("models", "ls", "--json").out)] == [2]
    shown = cli("models", "show", "digits", "production").out
    assert "aliases      production\n" in shown and "description  by hand\n" in shown
    assert json.loads(cli("models", "show", "digits", "1", "--json").out)["aliases"] == ["production"]

    refused = cli("models", "delete", "digits", "1", "--yes")
    assert refused.status == 1 and "is production" in refused.err
    assert cli("models", "delete", "digits", "1", answer="n\n").status == 1
    assert "add --yes to delete" in cli("models", "delete", "digits", "1").err
    assert cli("models", "delete", "digits", "1", "--force", answer="y\n").status == 0
    assert [one.version for one in model.versions("digits")] == [2]
    cli("models", "alias", "digits", "2", "production")
    assert cli("models", "alias", "digits", "2", "production", "--delete").status == 0
    assert model.aliases("digits") == {}


def test_invalid_models_command_is_refused_in_one_sentence(cli: Cli, weights: str) -> None:
    cli("models", "export", weights, "digits")
    for arguments, words in (
        (("export", weights, "digits", "--metric", "accuracy"), "a metric must be NAME=NUMBER"),
        (("export", weights, "digits", "--version", "1"), "version 1 of the model 'digits' already exists"),
        (("show", "digit"), "did you mean digits?"),
        (("alias", "digits", "1", "latest"), "already denote versions"),
    ):
        ended = cli("models", *arguments)
        assert ended.status == 1 and words in ended.err and len(ended.err.splitlines()) == 1
