"""Tests that malicious job files are refused quickly, with a message."""

from __future__ import annotations

import time

import pytest

from hopsml.core import suggestions
from hopsml.service import spec
from hopsml.service.spec import limits
from tests.unit.service.spec.examples import SMALL
from tests.unit.service.spec.test_loading import mistake, mistakes

pytestmark = pytest.mark.fast
SOON_S = 10.0  # a reader that expands what it should not needs hours, or all memory


@pytest.fixture(autouse=True)
def soon() -> object:
    """Nothing here takes its time."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON_S


def test_anchors_that_explode_are_refused_before_they_do() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 6)}]" for n in range(1, 12)]
    assert f"the file has more than {limits.NODES} values, including those that aliases repeat" in mistake(
        "\n".join(lines)
    )
    flat = "a: &a x\nb: [" + ", ".join(["*a"] * 100) + "]"
    assert "job.yaml:2: b[64]: more than 64 aliases (*name): write the values out" in mistake(flat)


def test_an_alias_of_itself_or_of_nothing() -> None:
    assert "*a refers to no anchor above it; write &a there" in mistake("a: &a [*a]")
    assert "*b refers to no anchor above it" in mistake("a: *b")


def test_few_aliases_do() -> None:
    job = spec.loads(
        "name: a\ntasks:\n  b: {script: a.py, resources: &r {cores: 2}}\n  c: {script: b.py, resources: *r}\n"
    )
    assert job.tasks["c"].resources.cores == 2
    text = "name: a\ntasks:\n  b: {script: a.py, resources: &r {cores: 0}}\n  c: {script: b.py, resources: *r}\n"
    assert [line.partition(": it")[0] for line in mistakes(text)] == [
        "job.yaml:3: tasks.b.resources.cores: 0",
        "job.yaml:4: tasks.c.resources.cores: 0",
    ]


def test_merge_keys_are_refused() -> None:
    assert "<<: fields are not merged here: write them out" in mistake("a: &a {b: 1}\nc: {<<: *a}")


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "a: " + "[" * 500 + "]" * 500])
def test_deep_nesting(text: str) -> None:
    assert "levels deep; 20 are allowed: flatten it" in mistake(text)


def test_a_large_file_and_a_large_value() -> None:
    assert f"the file has {limits.FILE_BYTES + 1} bytes; a job file has at most {limits.FILE_BYTES}" in mistake(
        b"#" * (limits.FILE_BYTES + 1)
    )
    assert "a value of 40000 characters; 32768 are allowed: put it into a file" in mistake(SMALL + "x: " + "y" * 40_000)
    assert "more than 200000 values" in mistake("a: [" + "1," * 300_000 + "]")


def test_bytes_that_are_no_text() -> None:
    assert "job.yaml:2: byte 0xff: a job file is UTF-8: save it so in your editor" in mistake(b"name: a\nqueue: \xff\n")
    assert "is UTF-8" in mistake("name: a".encode("utf-16"))
    assert "this is not YAML" in mistake(b"name: a\0b")
    assert "the character U+0000 stands in it: text has none such: leave it out" in mistake(
        SMALL + r'description: "a\0b"'
    )
    assert "the character U+001B stands in it" in mistake(SMALL + r'description: "\e[31m"')
    assert spec.loads(b"\xef\xbb\xbf" + SMALL.encode()).name == "small"


def test_tabs_and_other_mistakes_of_yaml() -> None:
    found = mistake("name: a\ntasks:\n\ttrain: {}\n")
    assert found.startswith("job.yaml:3: this is not YAML: ") and "a tab? YAML is indented with blanks" in found
    assert "job.yaml:2: this is not YAML" in mistake("name: [a\nb: c")
    assert "a second document (---): a job file has one" in mistake("name: a\n---\nname: b\n")
    for empty in ("", "\n", "# nothing", "---", "~"):
        assert "the file is empty: a job has at least a name and tasks" in mistake(empty)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [ls]", "!!binary aGk=", "!x {a: b}", "!!set {a}", "!!int '3'"]
)
def test_tags_are_refused(tag: str) -> None:
    shown = tag.split()[0]
    assert f"the tag {shown}: a job file has plain values only: leave the tag out" in mistake(SMALL + f"x: {tag}")


@pytest.mark.parametrize(
    "word", ["yes", "no", "on", "off", "y", "1:30", "2026-01-01", "0b1", "1_000", "=", "'010'", "!!str 3"]
)
def test_what_yaml_1_1_takes_for_something_else_is_text(word: str) -> None:
    job = spec.loads(f"name: a\ndescription: {word}\ntasks: {{on: {{script: a.py, env: {{NO: {word}}}}}}}")
    assert job.description == job.tasks["on"].env["NO"] == word.strip("'").removeprefix("!!str ")


@pytest.mark.parametrize(
    ("word", "value"),
    [("0x10", 16), ("0o17", 15), ("1e-4", 1e-4), ("1.", 1.0), (".5", 0.5), ("~", None), ("True", True)],
)
def test_what_yaml_1_2_says_of_a_word(word: str, value: object) -> None:
    job = spec.loads(f"name: a\ntasks: {{b: {{script: a.py, arguments: {{x: {word}}}}}}}")
    assert job.tasks["b"].arguments == {"x": value} and type(job.tasks["b"].arguments["x"]) is type(value)


def test_numbers_that_can_be_read_in_two_ways_or_not_be_kept() -> None:
    assert "010: some YAML parsers read a leading zero as octal, others do not" in mistake(SMALL + "priority: 010")
    for word in (".inf", "-.INF", ".nan", "1e999"):
        assert "a number must be finite" in mistake(SMALL.replace("train.py", f"train.py, arguments: {{x: {word}}}"))
    assert "a number has at most 40 characters" in mistake(SMALL + "priority: " + "9" * 5000)
    assert "it must be at most 100" in mistake(SMALL + "priority: " + "9" * 40)


def test_a_file_of_nonsense_is_read_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    instead = suggestions.instead

    def counted(name: str, *more: object) -> str:
        asked.append(name)
        return instead(name, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(suggestions, "instead", counted)
    found = mistakes(SMALL + "".join(f"unknown{n}: 1\n" for n in range(50_000)))
    assert found[-1] == "job.yaml: and 49900 more" and all(len(line) > 20 for line in found[:-1])
    assert len(asked) == limits.PROBLEMS, "what might have been meant is looked for where it is told"


def test_what_is_beyond_a_limit_is_refused_before_the_rest_is_read() -> None:
    broken = "\n}: this is no YAML"
    anchors = "a: [" + ",".join(f"&a{n} 1" for n in range(100)) + "]"
    assert "job.yaml:1: a[64]: more than 64 anchors (&name): write the values out" in mistake(anchors + broken)
    tasks = "tasks:\n" + "".join(f"  t{n}: {{script: a.py}}\n" for n in range(1_001))
    assert "job.yaml:1002: tasks: more than 1000 are given" in mistake(tasks + broken)
    labels = "labels: {" + ",".join(f"l{n}: x" for n in range(65)) + "}"
    assert "job.yaml:1: labels: more than 64 are given" in mistake(labels + broken)


@pytest.mark.parametrize(
    ("space", "refused"),
    [
        (f"x: [CATEGORICAL, [{', '.join(map(str, range(60_000)))}]]", ""),
        (f"x: [CATEGORICAL, [{', '.join(f'[{n}]' for n in range(20_000))}]]", "x has 20000 lists or tables as values"),
        (
            f"a: [CATEGORICAL, [1, 2]], b: [CATEGORICAL, [1, 2], {{a: [{', '.join(['[1]'] * 2_000)}]}}]",
            "b has 2000 lists or tables as values",
        ),
        (
            "a0: [CATEGORICAL, [1, 2]], "
            + ", ".join(f"a{n}: [CATEGORICAL, [1, 2], {{a{n - 1}: [1]}}]" for n in range(1, 10_000)),
            "at most 1000 are allowed",
        ),
    ],
    ids=["values", "lists", "conditions", "parameters"],
)
def test_a_search_space_is_checked_in_proportion(space: str, refused: str) -> None:
    text = f"name: a\ntasks: {{t: {{function: 'a.py:f'}}}}\nsearch: {{space: {{{space}}}}}\n"
    if refused:
        assert refused in mistake(text)
    else:
        assert spec.loads(text).searched() == "t"
