"""Table of renamed commands, and the translation of their old spellings, which work for one release."""

from __future__ import annotations

from collections.abc import Collection, Sequence

SERVE_NAME = "serve NAME"

# Old spelling -> new spelling, without "hopsml". Words behind the old spelling follow the new one unchanged.
RENAMED = {
    "cancel": "runs cancel",
    "evaluate": "runs evaluate",
    "follow": "runs follow",
    "logs": "runs logs",
    "metrics": "runs metrics",
    "profile": "runs profile",
    "rerun": "runs rerun",
    "status": "runs status",
    "tensorboard": "runs tensorboard",
    "tune-communication": "runs tune-communication",
    "runs diff": "runs compare",
    "job": "jobs",
    "model": "models",
    "schedule": "schedules",
    "secret": "secrets",
    "token": "tokens",
    "serving": "serve",
    SERVE_NAME: "serve run NAME",
}


def current_words(words: Sequence[str], serve_commands: Collection[str]) -> tuple[list[str], str]:
    """Translate the words of a command line to the present spelling.

    Args:
        words: the command line without ``hopsml``.
        serve_commands: names of the commands below ``hopsml serve``. Any other word in their place is the name of a
            serving, as in the old spelling ``hopsml serve NAME``; a serving with the name of a command needs
            ``hopsml serve run``.

    Returns:
        The words to run, and the line for stderr, which is empty if the words need no translation.
    """
    for old, new in RENAMED.items():
        parts = old.split()
        if old != SERVE_NAME and list(words[: len(parts)]) == parts:
            return [*new.split(), *words[len(parts) :]], _notice(old)
    if words[:1] == ["serve"] and len(words) > 1 and words[1] not in {*serve_commands, "--help"}:
        return ["serve", "run", *words[1:]], _notice(SERVE_NAME)
    return list(words), ""


def _notice(old: str) -> str:
    return f"hopsml: 'hopsml {old}' is now 'hopsml {RENAMED[old]}'"
