"""Tests that the reference and the code agree: settings, profile keys, commands, files of a run, errors."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import re
import shlex
from collections.abc import Iterator

import pytest
import typer

from hopsml import cli, errors
from hopsml.cli import RENAMED, repeat
from hopsml.core import profiles, variables
from hopsml.storage import run_dir
from hopsml.submission import follower
from tests.helpers import pages
from tests.helpers.pages import ROOT

pytestmark = pytest.mark.fast

SETTINGS, COMMANDS = "docs/reference/settings.md", "docs/reference/commands.md"
OURS = re.compile(r"\bHOPSML_[A-Z0-9_]+(?:<NAME>(?:_ADDRESSES)?)?")
PREFIXES = {"HOPSML_SECRET_": "HOPSML_SECRET_<NAME>", "HOPSML_TASK_": "HOPSML_TASK_<NAME>_ADDRESSES",
            "HOPSML_PORT_": "HOPSML_PORT_<NAME>", "HOPSML_DATASET_": "HOPSML_DATASET_<NAME>"}  # fmt: skip
READ = re.compile(r"environ\.(?:get|setdefault)\(\s*\"(?!HOPSML_)([A-Z][A-Z0-9_]+)\"")
# Variables set by no user: a shell, Jupyter and YARN set them for their own processes.
TOLD = {"PWD", "JPY_SESSION_NAME", "CONTAINER_ID", "NM_HOST"}


def sources() -> Iterator[str]:
    """All that is installed."""
    for folder, endings in (("hopsml", (".py",)), ("conf", (".py", ".yaml"))):
        for path in ROOT.joinpath(folder).rglob("*"):
            if path.suffix in endings:
                yield path.read_text(encoding="utf-8")


def variables_of_the_code() -> set[str]:
    found = {name for text in sources() for name in OURS.findall(text)} - {"HOPSML_"}
    return {PREFIXES.get(name, name) for name in found} | set(variables.VARIABLES)


def test_settings_page_has_one_row_per_variable() -> None:
    first = [name for row in pages.rows(SETTINGS) for name in pages.names(row[0])]
    assert len(first) == len(set(first)), "a variable has two rows"
    assert {name for name in first if name.startswith("HOPSML_")} == variables_of_the_code() - {"HOPSML_SECRET_<name>"}
    assert {name for text in sources() for name in READ.findall(text)} - TOLD <= set(first)


def test_settings_page_has_the_default_of_every_variable() -> None:
    documented = {name: row[-1] for row in pages.rows(SETTINGS) for name in pages.names(row[0])}
    for name, variable in variables.VARIABLES.items():
        assert name in documented and variable.text
        if variable.default.isdecimal() and variable.default not in ("0", "1"):
            assert documented[name] == variable.default


def test_variables_are_read_through_the_settings_object() -> None:
    """Constants of a module may name a variable that is set for a child process."""
    found = []
    for path in ROOT.joinpath("hopsml").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            read = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
                read = node.args[0] if "environ" in ast.unparse(node.func.value) and node.args else None
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                read = node.slice if "environ" in ast.unparse(node.value) else None
            if isinstance(read, ast.Constant) and str(read.value).startswith("HOPSML_"):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


def test_pages_name_only_existing_variables() -> None:
    known = variables_of_the_code() | {
        "HOPSML_SECRET_",
        "HOPSML_PORT_RPC",
        *(f"HOPSML_DATASET_{name}" for name in ("DIGITS", "LABELS")),
    }
    for page in pages.users_pages():
        assert set(OURS.findall(pages.text(page))) <= known, page


def test_profile_reference_lists_every_key_and_profile() -> None:
    page = "docs/reference/profiles.md"
    keys = {field.name for field in dataclasses.fields(profiles.Profile)} - {"name"} | {"extends"}
    first = [name for row in pages.rows(page) for name in pages.names(row[0])]
    shipped = sorted(path.stem for path in ROOT.glob("conf/*.yaml"))
    assert sorted(first) == sorted([*keys, *shipped])


def test_run_directory_reference_lists_every_file() -> None:
    rows = pages.rows("docs/reference/run-directory.md")
    documented = {name.strip("/") for row in rows for name in pages.names(" ".join(row))}
    missing = run_dir.RESERVED_NAMES - documented
    assert not missing
    layout = re.findall(r"^    ([\w.-]+)[/ ]", inspect.cleandoc(run_dir.__doc__ or ""), re.M)
    assert layout and set(layout) <= documented, sorted(set(layout) - documented)


def test_messages_reference_lists_every_error_and_its_builtin_base() -> None:
    kinds = {
        name: kind for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, BaseException) and kind is not errors.HopsmlError
    }  # fmt: skip
    documented = list(pages.rows("docs/reference/messages.md", "Errors and remedies"))
    assert {pages.names(row[0])[0] for row in documented} == set(kinds)
    for row in documented:
        for builtin in pages.names(row[1]):
            assert issubclass(kinds[pages.names(row[0])[0]], getattr(builtins, builtin)), row


def application() -> typer.core.TyperGroup:
    """The commands and groups of commands as typer makes them."""
    made = typer.main.get_command(cli.application())
    assert isinstance(made, typer.core.TyperGroup)
    return made


GROUPS = {name for name, made in application().commands.items() if isinstance(made, typer.core.TyperGroup)}


def commands() -> dict[str, typer.core.TyperCommand]:
    """Each command by its words behind ``hopsml``."""
    found: dict[str, typer.core.TyperCommand] = {}
    for name, made in application().commands.items():
        below = made.commands if isinstance(made, typer.core.TyperGroup) else {}
        found |= {f"{name} {verb}": command for verb, command in below.items()} or {name: made}  # type: ignore[dict-item]
    return found


def test_commands_reference_lists_every_command_with_its_options() -> None:
    page = pages.text(COMMANDS)
    for name, command in commands().items():
        sections = re.split(rf"### `hopsml {name}[ `]", page)
        rows = [line for line in page.splitlines() if re.match(rf"\| `hopsml {name}[ `]", line)]
        assert len(sections) - 1 + len(rows) == 1, name
        documented = rows[0] if rows else sections[1].partition("\n##")[0]
        options = [option for one in command.params for option in one.opts if option.startswith("--")]
        missing = [option for option in options if f"`{option}" not in documented]
        assert not missing, (name, missing)


def test_old_spellings_table_equals_that_of_the_code() -> None:
    rows = pages.rows(COMMANDS, "Old spellings")
    documented = {
        old.removeprefix("hopsml "): new.removeprefix("hopsml ") for old, new in map(pages.names, map(" ".join, rows))
    }
    assert documented == RENAMED


def test_exit_statuses_of_the_code_are_documented() -> None:
    documented = [number for row in pages.rows(COMMANDS, "Exit statuses") for number in row[0].split(", ")]
    assert {follower.OK, follower.FAILED, follower.TIMED_OUT, repeat.DIFFERS} <= {int(one) for one in documented}


def written_commands(page: str) -> Iterator[str]:
    """Yield the commands of a page: lines of its shell snippets, and code within its text except old spellings."""
    yield from "".join(pages.snippets(page, "sh")).splitlines()
    text = re.sub(r"\n## Old spellings\n.*?(?=\n## |\Z)", "", pages.text(page), flags=re.S)
    for code in re.findall(r"`(hopsml [a-z][^`\n]*)`", text):
        yield re.sub(r"[\[\]]|\.\.\.", "", code)


def test_commands_in_pages_exist_with_their_options() -> None:
    known = commands() | {"resume": commands()["runs resume"]}
    for page in pages.users_pages():
        for line in written_commands(page):
            words = shlex.split(line, comments=True)
            if words[:1] == ["hopsml"] and words[1:] not in [[group] for group in GROUPS]:
                name = " ".join(words[1:3]) if words[1] in GROUPS else words[1]
                assert name in known, (page, line)
                options = {option for one in known[name].params for option in one.opts} | {"--help"}
                own = words[: words.index("--")] if "--" in words else words  # what follows is the script's
                assert {word for word in own if word.startswith("--")} <= options, (page, line)


def test_comments_in_pages_name_existing_commands() -> None:
    """A comment such as "also: show, compare" names further commands of the group in its line."""
    known, found = commands(), 0
    for page in pages.users_pages():
        for line in "".join(pages.snippets(page, "sh")).splitlines():
            if match := re.match(r"hopsml (\w+) .*# .*?also: ([\w, ]+)", line):
                verbs = [verb for verb in match[2].split(", ") if " " not in verb]
                found += len(verbs)
                assert [verb for verb in verbs if f"{match[1]} {verb}" not in known] == [], (page, line)
    assert found > 3
