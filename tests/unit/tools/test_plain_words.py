"""`tools.plain_words` and `tools.commit_subject`: what counts as opaque or dialect, and which commit subjects pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import commit_subject, plain_words

pytestmark = pytest.mark.fast

MODULE = '''"""Positions of samples in a stream."""

NOBODY = "somebody"  # nobody reads a string


class Window:
    """A range of positions that is read at once."""

    def first(self):
        """Where it begins."""

    def last(self):
        """As ``first``."""

    def size(self):
        """Its length."""

    def _told(self):
        """What it was told."""

    def __len__(self):
        """The number of positions that are kept."""
'''


def measured(source: str) -> plain_words.Measured:
    found = plain_words.Measured()
    plain_words.add_module(found, "m.py", source)
    return found


@pytest.mark.parametrize(
    ("sentence", "opaque"),
    [
        ("Return the number of workers that joined.", False),
        ("True if the job has ended.", False),
        ("Whether the job has ended.", True),
        ("what is read at once, in bytes.", True),
        ("Whatever the store returns is decoded here.", False),
        ("As ``read``, without the header of the file.", True),
        ("As of version 2 the header is left out.", False),
        ("Its own length.", True),
    ],
)
def test_opaque_first_sentences_are_recognised(sentence: str, opaque: bool) -> None:
    assert plain_words.is_opaque(sentence) is opaque


def test_private_docstrings_count_for_words_but_not_as_public() -> None:
    found = measured(MODULE)
    assert found.public_docstrings == 5
    assert [place.split(": ")[0] for place in found.opaque] == ["m.py:10 first", "m.py:13 last", "m.py:16 size"]
    assert found.dialect == ["m.py:19 told", "m.py:22 kept", "m.py:3 nobody"]
    assert found.figures() == {
        "opaque_percent": 60.0,
        "question_percent": 20.0,
        "dialect_per_10k_lines": round(3e4 / 22, 1),
        "class_names_used_twice": 0,
        "dialect_test_names_percent": 0.0,
    }


def test_class_name_in_two_modules_is_counted_once() -> None:
    found = measured("class A: ...\nclass B: ...\n")
    plain_words.add_module(found, "n.py", "class A: ...\nclass _C: ...\n")
    plain_words.add_module(found, "o.py", "class A: ...\nclass _C: ...\n")
    assert found.figures()["class_names_used_twice"] == 1


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("test_driver_restarts_lost_agents", False),
        ("test_whoever_is_lost_is_replaced", True),
        ("test_one_that_is_lost_is_replaced", True),
        ("test_user_is_told_of_lost_agents", True),
        ("test_group_goes_on_without_it", True),
        ("test_untold_values_are_ignored", False),
    ],
)
def test_names_of_tests_are_measured(name: str, dialect: bool) -> None:
    found = measured(f"def {name}(): ...\n\ndef told_helper(): ...\n")
    assert found.dialect_tests == ([f"m.py:1 {name}"] if dialect else [])
    assert found.figures()["dialect_test_names_percent"] == 100 * dialect


def test_words_in_code_on_a_page_are_ignored() -> None:
    found = plain_words.Measured()
    plain_words.add_page(found, "p.md", "# Runs\n\n```sh\necho told\n```\n\nThe `kept` folder\nis kept.\n")
    assert found.dialect == ["p.md:8 kept"]


def test_figure_above_its_limit_is_named_with_the_limit() -> None:
    figures = dict(plain_words.LIMITS)
    assert plain_words.exceeded(figures) == []
    assert plain_words.exceeded({**figures, "opaque_percent": 7.1}) == ["opaque_percent is 7.1, limit 7"]


def test_command_fails_for_a_package_above_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain.py").write_text('"""Positions of samples in a stream."""\n')
    assert plain_words.main([str(tmp_path)]) == 0
    (tmp_path / "riddle.py").write_text(MODULE)
    assert plain_words.main([str(tmp_path), "--list", "1"]) == 1
    printed = capsys.readouterr()
    assert "riddle.py:10 first: Where it begins." in printed.out
    assert "opaque_percent is 50, limit 7; see docs/glossary.md" in printed.err


@pytest.mark.parametrize(
    ("subject", "wrong"),
    [
        ("Fix the lease of a leader that was stopped", ""),
        ("Process heartbeats before timers", ""),
        ("Merge branch 'main' into topic", ""),
        ("Fixed the lease", "begins with 'Fixed'"),
        ("Adding a test", "begins with 'Adding'"),
        ("Stores runs", "begins with 'Stores'"),
        ("The lease ends", "begins with 'The'"),
        ("fix the lease", "capital letter"),
        ("Fix the lease.", "full stop"),
        ("Fix " + "x" * 69, "has 73 characters, at most 72"),
        ("Fix " + "x" * 68, ""),
        ("", "capital letter"),
    ],
)
def test_commit_subjects_are_checked(subject: str, wrong: str, tmp_path: Path) -> None:
    found = commit_subject.problem(subject)
    assert wrong in found
    assert bool(found) == bool(wrong)
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nBody.\n")
    assert commit_subject.main(str(message)) == int(bool(wrong))
