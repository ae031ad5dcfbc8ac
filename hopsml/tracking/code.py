"""The code around the training function: the script or the notebook's cells, and the git state of its folder.

The function itself travels as a pickle, which is what a rerun runs; this is for people who want to know what it was.
Secrets are masked in it: literals that are assigned to names such as ``password``, and what is known to be one.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopsml import redact

LIMIT_BYTES = 1 << 20  # of one file of code, and of a diff
GIT_TIMEOUT_S = 5.0  # for all that is asked of it together
GIT_FRESH_S = 2.0
_OF_A_FILE = re.compile(r"^(?=diff --git )", re.MULTILINE)
_IS_CODE = re.compile(r"diff --git .*\.(?:py|pyi|ipynb|java|scala|kt|c|cc|cpp|h|go|rs|js|ts|r|R|jl)\"?$", re.MULTILINE)
# Whole files of secrets: not even a difference of theirs is recorded.
_NEVER = ("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keytab", "*id_rsa*", "*id_ed25519*", "*.netrc", "*.pgpass")

_git_lock = threading.Lock()
_git_known: dict[Path, tuple[float, tuple[dict[str, Any], bytes]]] = {}


@dataclass
class Code:
    """``facts`` for the record, ``files`` for the folder ``code/`` by name."""

    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


def collect() -> Code:
    """Script, or notebook cells, and git; whatever there is. Slow (git is a process): not for the launch path."""
    code = Code()
    path, cells = script(), notebook_cells()
    folder = path.parent if path is not None else Path.cwd()
    if cells is not None:
        code.facts["notebook"] = {"path": notebook_path(), "cells": len(cells)}
        code.files["cells.py"] = _cells_as_text(cells).encode(errors="replace")
    if path is not None:
        _add_script(code, path)
    if path is not None or cells is not None:
        repository, diff = _git_now(folder)
        if repository:
            code.facts["git"] = repository
        if diff:
            code.files["git.diff"] = diff
    for name, content in code.files.items():
        code.files[name] = cleaned(name, content)
        if code.files[name] != content:
            code.facts.setdefault("redacted", []).append(name)
    return code


def cleaned(name: str, content: bytes) -> bytes:
    """A file of code without its secrets; a difference is looked through file by file, as each one's kind demands."""
    text = content.decode(errors="surrogateescape")
    if name.endswith(".diff"):
        parts = _OF_A_FILE.split(text)
        text = "".join(redact.code(part) if _IS_CODE.match(part) else redact.text(part) for part in parts)
    else:
        text = redact.code(text)
    return text.encode(errors="surrogateescape")


def script() -> Path | None:
    """The file that this process was started with; None in a console, in a notebook, and for an installed program."""
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    if not name or notebook_cells() is not None:
        return None
    path = Path(name).absolute()
    prefixes = [Path(prefix) for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}]
    # A project's environment may lie inside the project, not the other way round.
    installed = any(path.is_relative_to(prefix) for prefix in prefixes) or "site-packages" in path.parts
    return path if path.is_file() and not installed else None


def notebook_cells() -> list[str] | None:
    """What was run so far in IPython or Jupyter, a cell each; None outside of it."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    history = getattr(shell, "user_ns", {}).get("In") if shell is not None else None
    return [str(cell) for cell in history] if isinstance(history, list) else None


def notebook_path() -> str:
    """Where the notebook lies, as far as its front end tells; "" else."""
    return os.environ.get("JPY_SESSION_NAME", "")


def _git_now(folder: Path) -> tuple[dict[str, Any], bytes]:
    """As ``git``, but not asked again within ``GIT_FRESH_S``: a search starts many runs at once."""
    with _git_lock:
        known = _git_known.get(folder)
        if known is None or time.monotonic() - known[0] > GIT_FRESH_S:
            known = _git_known[folder] = (time.monotonic(), git(folder))
        return known[1]


def git(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Commit, branch, remote and whether anything differs from the commit; and the difference, cut at ``LIMIT_BYTES``.

    ``({}, b"")`` without git, outside of a repository, and in one without a commit.
    """
    deadline = time.monotonic() + GIT_TIMEOUT_S

    def ask(*arguments: str) -> bytes | None:
        return _git(folder, arguments, deadline)

    commit = ask("rev-parse", "HEAD")
    if not commit:
        return {}, b""
    # Not "--binary": nobody could find a secret in what it writes. The index line still names what a binary file was.
    options = ("--no-color", "--no-ext-diff", "--no-textconv", "--full-index")
    diff = ask("diff", "HEAD", *options, "--", ":/", *(f":(exclude,top,glob)**/{name}" for name in _NEVER))
    is_known, diff = diff is not None, diff or b""
    status = ask("status", "--porcelain", "--untracked-files=normal")
    untracked = [line[3:] for line in _text(status).splitlines() if line.startswith("?? ")]
    return (
        {
            "commit": _text(commit),
            "branch": _text(ask("rev-parse", "--abbrev-ref", "HEAD")),
            "root": _text(ask("rev-parse", "--show-toplevel")),
            "remote": redact.text(_text(ask("config", "--get", "remote.origin.url"))),
            "dirty": bool(diff) if is_known else None,  # None: git did not say in time
            "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else "",
            "diff_is_cut": len(diff) > LIMIT_BYTES,
            "untracked": untracked[:100],
        },
        diff[:LIMIT_BYTES],
    )


def _add_script(code: Code, path: Path) -> None:
    facts: dict[str, Any] = {"path": str(path)}
    code.facts["script"] = facts
    if path.stat().st_size > LIMIT_BYTES:
        facts["not_copied"] = f"larger than {LIMIT_BYTES} bytes"
        return
    content = path.read_bytes()
    facts["sha256"] = hashlib.sha256(content).hexdigest()
    code.files["script.py"] = content


def _cells_as_text(cells: list[str]) -> str:
    parts = [f"# In [{number}]\n{cell.rstrip()}\n" for number, cell in enumerate(cells) if cell.strip()]
    return "\n".join(parts)


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace").strip()


def _git(folder: Path, arguments: Sequence[str], deadline: float) -> bytes | None:
    """Its output, at most ``LIMIT_BYTES`` and one; None if it fails or has not ended at the deadline (monotonic)."""
    if time.monotonic() >= deadline:
        return None
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    line = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    try:
        process = subprocess.Popen(
            line, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:  # no git here
        return None
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
    timer.start()
    try:
        with process.stdout as pipe:  # type: ignore[union-attr]  # PIPE was asked for
            output = pipe.read(LIMIT_BYTES + 1)
            is_cut = len(output) > LIMIT_BYTES
        if is_cut:
            process.kill()
        return output if process.wait() == 0 or is_cut else None
    finally:
        process.kill()
        timer.cancel()
        timer.join()
