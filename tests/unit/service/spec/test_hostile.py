"""Tests that malicious job files are refused quickly, with a message."""

from __future__ import annotations

import pytest

from hopsml.core import suggestions
from hopsml.service import spec
from hopsml.service.spec import limits
from tests.helpers import clock
from tests.unit.service.spec.examples import SMALL
from tests.unit.service.spec.test_loading import problem, problems

pytestmark = pytest.mark.fast
SOON_S = 10.0  # a reader that expands what it should not needs hours, or all memory


@pytest.fixture(autouse=True)
def soon() -> object:
    """Assert that each test ends soon."""
    started_s = clock.awake()
    yield
    assert clock.awake() - started_s < SOON_S


def test_exponential_anchors_are_refused_before_they_are_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 6)}]" for n in range(1, 12)]
    assert f"the file has more than {limits.NODES} values, including those that aliases repeat" in problem(
        "\n".join(lines)
    )
    flat = "a: &a x\nb: [" + ", ".join(["*a"] * 100) + "]"
    assert "job.yaml:2: b[64]: more than 64 aliases (*name): write the values out" in problem(flat)


def test_alias_of_itself_or_of_no_anchor_is_refused() -> None:
    assert "*a refers to no anchor above it; write &a there" in problem("a: &a [*a]")
    assert "*b refers to no anchor above it" in problem("a: *b")


def test_job_file_with_few_aliases_is_accepted() -> None:
    job = spec.loads(
        "name: a\ntasks:\n  b: {script: a.py, resources: &r {cores: 2}}\n  c: {script: b.py, resources: *r}\n"
    )
    assert job.tasks["c"].resources.cores == 2
    text = "name: a\ntasks:\n  b: {script: a.py, resources: &r {cores: 0}}\n  c: {script: b.py, resources: *r}\n"
    assert [line.partition(": it")[0] for line in problems(text)] == [
        "job.yaml:3: tasks.b.resources.cores: 0",
        "job.yaml:4: tasks.c.resources.cores: 0",
    ]


def test_merge_keys_are_refused() -> None:
    assert "<<: fields are not merged here: write them out" in problem("a: &a {b: 1}\nc: {<<: *a}")


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "a: " + "[" * 500 + "]" * 500])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "levels deep; 20 are allowed: flatten it" in problem(text)


def test_oversized_file_value_or_list_is_refused() -> None:
    assert f"the file has {limits.FILE_BYTES + 1} bytes; a job file has at most {limits.FILE_BYTES}" in problem(
        b"#" * (limits.FILE_BYTES + 1)
    )
    assert "a value of 40000 characters; 32768 are allowed: put it into a file" in problem(SMALL + "x: " + "y" * 40_000)
    assert "more than 200000 values" in problem("a: [" + "1," * 300_000 + "]")


def test_bytes_other_than_utf8_text_are_refused() -> None:
    assert "job.yaml:2: byte 0xff: a job file is UTF-8: save it so in your editor" in problem(b"name: a\nqueue: \xff\n")
    assert "is UTF-8" in problem("name: a".encode("utf-16"))
    assert "this is not YAML" in problem(b"name: a\0b")
    assert "the character U+0000 stands in it: text has none such: leave it out" in problem(
        SMALL + r'description: "a\0b"'
    )
    assert "the character U+001B stands in it" in problem(SMALL + r'description: "\e[31m"')
    assert spec.loads(b"\xef\xbb\xbf" + SMALL.encode()).name == "small"


def test_yaml_syntax_errors_are_explained() -> None:
    found = problem("name: a\ntasks:\n\ttrain: {}\n")
    assert found.startswith("job.yaml:3: this is not YAML: ") and "a tab? YAML is indented with blanks" in found
    assert "job.yaml:2: this is not YAML" in problem("name: [a\nb: c")
    assert "a second document (---): a job file has one" in problem("name: a\n---\nname: b\n")
    for empty in ("", "\n", "# nothing", "---", "~"):
        assert "the file is empty: a job has at least a name and tasks" in problem(empty)


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [ls]", "!!binary aGk=", "!x {a: b}", "!!set {a}", "!!int '3'"]
)
def test_tags_are_refused(tag: str) -> None:
    shown = tag.split()[0]
    assert f"the tag {shown}: a job file has plain values only: leave the tag out" in problem(SMALL + f"x: {tag}")


@pytest.mark.parametrize(
    "word", ["yes", "no", "on", "off", "y", "1:30", "2026-01-01", "0b1", "1_000", "=", "'010'", "!!str 3"]
)
def test_words_with_a_special_meaning_in_yaml_1_1_are_text(word: str) -> None:
    job = spec.loads(f"name: a\ndescription: {word}\ntasks: {{on: {{script: a.py, env: {{NO: {word}}}}}}}")
    assert job.description == job.tasks["on"].env["NO"] == word.strip("'").removeprefix("!!str ")


@pytest.mark.parametrize(
    ("word", "value"),
    [("0x10", 16), ("0o17", 15), ("1e-4", 1e-4), ("1.", 1.0), (".5", 0.5), ("~", None), ("True", True)],
)
def test_numbers_and_null_are_read_by_yaml_1_2_rules(word: str, value: object) -> None:
    job = spec.loads(f"name: a\ntasks: {{b: {{script: a.py, arguments: {{x: {word}}}}}}}")
    assert job.tasks["b"].arguments == {"x": value} and type(job.tasks["b"].arguments["x"]) is type(value)


def test_ambiguous_infinite_or_oversized_numbers_are_refused() -> None:
    assert "010: some YAML parsers read a leading zero as octal, others do not" in problem(SMALL + "priority: 010")
    for word in (".inf", "-.INF", ".nan", "1e999"):
        assert "a number must be finite" in problem(SMALL.replace("train.py", f"train.py, arguments: {{x: {word}}}"))
    assert "a number has at most 40 characters" in problem(SMALL + "priority: " + "9" * 5000)
    assert "it must be at most 100" in problem(SMALL + "priority: " + "9" * 40)


def test_number_of_problems_and_suggestions_is_bounded_for_a_malformed_file(monkeypatch: pytest.MonkeyPatch) -> None:
    suggested_for: list[str] = []
    instead = suggestions.suggestion_text

    def counted(name: str, *more: object) -> str:
        suggested_for.append(name)
        return instead(name, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(suggestions, "suggestion_text", counted)
    found = problems(SMALL + "".join(f"unknown{n}: 1\n" for n in range(50_000)))
    assert found[-1] == "job.yaml: and 49900 more" and all(len(line) > 20 for line in found[:-1])
    assert len(suggested_for) == limits.PROBLEMS, "what might have been meant is looked for where it is told"


def test_exceeded_limit_is_refused_before_the_rest_is_read() -> None:
    broken = "\n}: this is no YAML"
    anchors = "a: [" + ",".join(f"&a{n} 1" for n in range(100)) + "]"
    assert "job.yaml:1: a[64]: more than 64 anchors (&name): write the values out" in problem(anchors + broken)
    tasks = "tasks:\n" + "".join(f"  t{n}: {{script: a.py}}\n" for n in range(1_001))
    assert "job.yaml:1002: tasks: more than 1000 are given" in problem(tasks + broken)
    labels = "labels: {" + ",".join(f"l{n}: x" for n in range(65)) + "}"
    assert "job.yaml:1: labels: more than 64 are given" in problem(labels + broken)


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
def test_search_space_is_checked_in_linear_time(space: str, refused: str) -> None:
    text = f"name: a\ntasks: {{t: {{function: 'a.py:f'}}}}\nsearch: {{space: {{{space}}}}}\n"
    if refused:
        assert refused in problem(text)
    else:
        assert spec.loads(text).searched() == "t"
