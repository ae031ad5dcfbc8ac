"""Help texts: each command, argument and option has complete sentences, with the default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from hopsml import cli

pytestmark = pytest.mark.fast


def commands(group: Any, words: str = "hopsml") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


COMMANDS = dict(commands(typer.main.get_command(cli.application())))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_texts_are_sentences_with_defaults(name: str) -> None:
    command = COMMANDS[name]
    assert command.help[0].isupper() and command.help.rstrip().endswith(".")
    for parameter in command.params:
        text = parameter.help or ""
        assert text[:1].isupper() and text.endswith("."), (parameter.name, text)
        printed = parameter.required or parameter.is_flag if parameter.param_type_name == "option" else True
        unset = parameter.default in (None, "", []) and not printed
        assert not unset or "Default: " in text or "may be given more than once" in text, (parameter.name, text)


@pytest.mark.parametrize("words", [["--help"], ["runs", "--help"], ["serve", "--help"], ["runs"], ["serve"], []])
def test_command_groups_print_their_commands(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["hopsml", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == (0 if "--help" in words else 2)
    printed = capsys.readouterr()
    assert "Commands" in printed.out + printed.err
