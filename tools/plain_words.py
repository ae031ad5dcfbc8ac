"""Measure how plainly docstrings, comments and documentation pages are written, and fail above the limits.

    .venv/bin/python -m tools.plain_words [--list N] [PACKAGE ...]

A public docstring counts as *opaque* if its first sentence begins with a question word ("What", "Whether", "How", ...), only
points to another docstring ("As ``x``", "See ``x``"), or has fewer than four words. *Dialect words* (DIALECT)
personify objects, or stand in place of a term of docs/glossary.md; they are counted per 10 000 lines in docstrings and
comments of packages, and in the text of pages outside code blocks. A *dialect test name* has such a word, or begins with
a clause in place of its subject ("what", "who", "one that", ...). ``make lint`` runs it on PACKAGES, docs/ and tests/.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hopsml", "tools", "benchmarks")
PAGES = "docs"
TESTS = "tests"  # of which the names alone are limited
TEST_NAMES = "dialect_test_names_percent"
LIMITS = {  # of each package; those of pages are the dialect words alone
    "opaque_percent": 7.0,
    "question_percent": 1.5,
    "dialect_per_10k_lines": 15.0,
    "class_names_used_twice": 6,
    TEST_NAMES: 1.0,
}
FEWEST_WORDS = 4
QUESTION = re.compile(r"(what|whether|how|where|why|who|whose|which|when)\b", re.IGNORECASE)
POINTER = re.compile(r"(as|see|like)\s+(in\s+)?`", re.IGNORECASE)
WORDS = (
    "told|tells?|said|says?|hears?|heard|kept|nobody|somebody|anybody|beside|door|wish(?:es|ed)?|mend(?:s|ed)?|anew|"
    "meanwhile|stands"
)
PHRASES = (
    "goes on|went on|go on|that is there|what is there|is to be|are to be|gives? back|given back|looks? for|begins? anew|"
    "one'?s own|of its own|of their own|by turns|in turn|so long as|none of"
)
DIALECT = re.compile(rf"\b({PHRASES}|{WORDS})\b", re.IGNORECASE)
TEST_CLAUSE = re.compile(r"test_(what|who|whose|whoever|whatever|whom|however|nobody|somebody|one_that|of)_")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")


@dataclass
class Measured:
    """Counts of one package, or of all pages."""

    lines: int = 0
    public_docstrings: int = 0
    questions: int = 0
    opaque: list[str] = field(default_factory=list)  # "file:line name: first sentence"
    dialect: list[str] = field(default_factory=list)  # "file:line word"
    classes: Counter[str] = field(default_factory=Counter)
    tests: int = 0
    dialect_tests: list[str] = field(default_factory=list)  # "file:line name"

    def figures(self) -> dict[str, float]:
        """Return the four figures that LIMITS bounds."""
        docstrings, lines = max(1, self.public_docstrings), max(1, self.lines)
        return {
            "opaque_percent": round(100 * len(self.opaque) / docstrings, 1),
            "question_percent": round(100 * self.questions / docstrings, 1),
            "dialect_per_10k_lines": round(1e4 * len(self.dialect) / lines, 1),
            "class_names_used_twice": sum(count > 1 for count in self.classes.values()),
            TEST_NAMES: round(100 * len(self.dialect_tests) / max(1, self.tests), 1),
        }


def is_question(sentence: str) -> bool:
    """Return True if a sentence begins with a question word's clause."""
    return QUESTION.match(sentence) is not None


def is_opaque(sentence: str) -> bool:
    """Return True if the first sentence of a docstring does not state by itself what the object is or does."""
    return is_question(sentence) or POINTER.match(sentence) is not None or len(sentence.split()) < FEWEST_WORDS


def is_dialect_test(name: str) -> bool:
    """Return True if the name of a test function has a dialect word, or a clause in place of its subject."""
    return TEST_CLAUSE.match(name) is not None or DIALECT.search(name.replace("_", " ")) is not None


def first_sentence(docstring: str) -> str:
    """Return a docstring up to its first full stop or semicolon that a blank follows."""
    return re.split(r"(?<=[.;])\s", docstring.strip(), maxsplit=1)[0]


def documented(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the line, name and docstring of each module, class and function that has one; "<module>" for a module."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield node.body[0].lineno, getattr(node, "name", "<module>"), text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def add_module(measured: Measured, name: str, source: str) -> None:
    """Count one Python file, which findings call ``name``."""
    tree = ast.parse(source)
    measured.lines += source.count("\n")
    for line, owner, text in documented(tree):
        _add_words(measured, name, line, text)
        if owner.startswith("_"):
            continue
        measured.public_docstrings += 1
        sentence = first_sentence(text)
        measured.questions += is_question(sentence)
        if is_opaque(sentence):
            measured.opaque.append(f"{name}:{line} {owner}: {sentence[:90]}")
    for line, text in comments(source):
        _add_words(measured, name, line, text)
    measured.classes.update(
        node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            measured.tests += 1
            if is_dialect_test(node.name):
                measured.dialect_tests.append(f"{name}:{node.lineno} {node.name}")


def add_page(measured: Measured, name: str, source: str) -> None:
    """Count one Markdown page; code blocks and inline code are left out."""
    measured.lines += source.count("\n")
    blanked = FENCE.sub(lambda block: "\n" * block.group().count("\n"), source)
    _add_words(measured, name, 1, INLINE_CODE.sub("", blanked))


def _add_words(measured: Measured, name: str, line: int, text: str) -> None:
    for found in DIALECT.finditer(text):
        measured.dialect.append(f"{name}:{line + text.count(chr(10), 0, found.start())} {found.group().lower()}")


def measure_package(root: Path) -> Measured:
    """Return the counts of all Python files below a folder."""
    measured = Measured()
    for path in sorted(root.rglob("*.py")):
        add_module(measured, str(path), path.read_text(encoding="utf-8"))
    return measured


def measure_pages(root: Path) -> Measured:
    """Return the counts of all Markdown pages below a folder."""
    measured = Measured()
    for path in sorted(root.rglob("*.md")):
        add_page(measured, str(path), path.read_text(encoding="utf-8"))
    return measured


def exceeded(figures: dict[str, float], limited: Sequence[str] = tuple(LIMITS)) -> list[str]:
    """Return a line for each figure of ``limited`` above its limit."""
    return [f"{name} is {figures[name]:g}, limit {LIMITS[name]:g}" for name in limited if figures[name] > LIMITS[name]]


def main(arguments: Sequence[str]) -> int:
    """Print a line of figures for each package and for the pages; return 1 if one exceeds its limit."""
    parser = argparse.ArgumentParser(prog="python -m tools.plain_words")
    parser.add_argument("packages", nargs="*", default=PACKAGES, help=f"folders; {' '.join(PACKAGES)} by default")
    parser.add_argument("--list", type=int, default=0, help="print so many places of each kind")
    given = parser.parse_args(arguments)
    measured = {name: measure_package(Path(name)) for name in given.packages}
    if tuple(given.packages) == PACKAGES:
        measured[PAGES] = measure_pages(ROOT / PAGES)
        measured[TESTS] = measure_package(ROOT / TESTS)
    problems = []
    for name, one in measured.items():
        for place in (*one.opaque[: given.list], *one.dialect[: given.list], *one.dialect_tests[: given.list]):
            print(place)
        print(name, json.dumps({"lines": one.lines, "public_docstrings": one.public_docstrings, **one.figures()}))
        limited = (TEST_NAMES,) if name == TESTS else tuple(LIMITS)
        problems += [f"{name}: {problem}" for problem in exceeded(one.figures(), limited)]
    for problem in problems:
        print(f"plain_words: {problem}; see docs/glossary.md, and --list 50 for the places", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
