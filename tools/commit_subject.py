"""Check the subject line of a commit message: imperative, at most 72 characters. pre-commit calls it at ``commit-msg``.

.venv/bin/python -m tools.commit_subject .git/COMMIT_EDITMSG
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MOST = 72  # characters
MADE_BY_GIT = re.compile(r"(Merge|Revert|fixup!|squash!)\b")
NO_VERB = {
    "a",
    "an",
    "the",
    "this",
    "that",
    "these",
    "it",
    "its",
    "what",
    "who",
    "where",
    "when",
    "how",
    "why",
    "whether",
    "now",
}
ENDS_LIKE_A_VERB = {  # imperatives that end as other forms of verbs do
    "address", "bring", "bypass", "compress", "discuss", "embed", "exceed", "express", "feed", "focus", "need", "pass",
    "proceed", "process", "seed", "shed", "speed", "string", "succeed", "suppress", "toss", "witness",
}  # fmt: skip


def problem(subject: str) -> str:
    """Return what is wrong with a subject line, with the rule; "" if nothing is."""
    if MADE_BY_GIT.match(subject):
        return ""
    if len(subject) > MOST:
        return f"the subject has {len(subject)} characters, at most {MOST} are allowed: move the reason into the body"
    if subject.endswith("."):
        return "the subject ends with a full stop: remove it"
    first = re.match(r"[A-Za-z]+", subject)
    if first is None or not first.group()[0].isupper():
        return f"the subject {subject!r:.40} does not begin with a capital letter"
    word = first.group().lower()
    inflected = word.endswith(("ed", "ing")) or (word.endswith("s") and not word.endswith("ss"))
    if word in NO_VERB or (inflected and word not in ENDS_LIKE_A_VERB):
        return f"the subject begins with {first.group()!r}: begin with an imperative, as in 'Add', 'Fix', 'Rename'"
    return ""


def main(path: str) -> int:
    """Print what is wrong with the message in a file; return 1 if something is."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    wrong = problem(lines[0] if lines else "")
    if wrong:
        print(f"commit message: {wrong}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
