"""Settings that must not appear in a command line, since all users of a machine can read the arguments of processes.

spark-submit gets them as a properties file that exists only in memory, by a descriptor; a ``hopsml submit`` started by
another program of hopsml gets them in an environment variable, which only the same user can read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping, Sequence

from hopsml.core import redact
from hopsml.errors import ArgumentError

VARIABLE = "HOPSML_SUBMIT_CONF"  # JSON: settings for ``hopsml submit``
_VARIABLES = ("spark.executorEnv.", "spark.yarn.appMasterEnv.", "spark.kubernetes.driverEnv.")


def is_hidden(key: str, value: str) -> bool:
    """Return True if a setting must not be in a command line.

    Such settings contain a secret, or set any environment variable of the driver or of executors.
    """
    return key.startswith(_VARIABLES) or redact.is_secret(key) or redact.text(value) != value


def split(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split the settings into those that any user may read, and those to hide."""
    hidden = {key: value for key, value in settings.items() if is_hidden(key, value)}
    return {key: value for key, value in settings.items() if key not in hidden}, hidden


def split_command(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return spark-submit's command line without the ``--conf`` settings to hide, and those settings."""
    line, hidden, at = [command[0]], {}, 1
    while at + 1 < len(command) and command[at].startswith("--"):
        key, _, value = command[at + 1].partition("=")
        if command[at] == "--conf" and is_hidden(key, value):
            hidden[key] = value
        else:
            line += command[at : at + 2]
        at += 2
    return [*line, *command[at:]], hidden


def to_properties(settings: Mapping[str, str]) -> bytes:
    """Return the settings as a properties file that Java and Spark can read."""
    return "".join(f"{_escaped(key, ' =:#!')}={_escaped(value)}\n" for key, value in settings.items()).encode()


def _escaped(text: str, besides: str = "") -> str:
    """Escape a text for a properties file."""
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    text = "".join(f"\\{letter}" if letter in besides else letter for letter in text)
    return f"\\{text}" if text[:1] == " " else text


def memory_file(content: bytes) -> int:
    """Return the descriptor of an anonymous file in memory with this content, for a child process to inherit.

    The file disappears with the last process that has it open.
    """
    descriptor = os.memfd_create("hopsml-submit", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    return descriptor


def from_environment(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Return the settings in the variable ``VARIABLE``, and remove it, so that no child process inherits it.

    Raises:
        ArgumentError: if it is no JSON object.
    """
    text = environment.pop(VARIABLE, "")
    try:
        settings = json.loads(text or "{}")
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise ArgumentError(f"{VARIABLE} must hold JSON, an object of Spark settings")
    return {str(key): str(value) for key, value in settings.items()}
