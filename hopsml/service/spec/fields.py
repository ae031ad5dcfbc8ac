"""Types of fields in job files, with their rules: names, memory and durations, and names and values of secrets.

Memory such as ``16g`` and durations such as ``2h`` are text in a job file, integer MiB and seconds in Python. A number
without a unit is refused, as it is ambiguous (MiB or bytes, seconds or minutes).
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from hopsml.core import redact
from hopsml.errors import ArgumentError
from hopsml.service.spec import limits


class SpecPart(BaseModel):
    """Base of a job and its parts; fields can be set by their aliases in a job file, or by their Python names."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, validate_default=False
    )


_READ_BY_PROGRAMS = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "LANG", "LANGUAGE", "TZ", "TERM", "IFS", "ENV", "CDPATH"),
    *("TMPDIR", "TEMP", "TMP", "CLASSPATH", "LOCAL_DIRS", "CONTAINER_ID", "TF_CONFIG", "VIRTUAL_ENV", "PYSPARK_PYTHON"),
    *("GLIBC_TUNABLES", "GCONV_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "PYSPARK_DRIVER_PYTHON"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
}
_BEGINNINGS = (
    *("LD_", "PYTHON", "LC_", "BASH_", "MALLOC_", "JAVA_", "JDK_JAVA_", "SPARK_", "HADOOP_", "YARN_", "HDFS_"),
    *("CUDA_", "NVIDIA_", "NCCL_", "OMP_", "KRB5"),
)
MOST_SECRET_BYTES = 32 << 10  # most bytes of a value: the variables of a process have a limited total size


def secret_variable(name: str) -> str:
    """Return the environment variable of a secret: ``s3-key`` is S3_KEY."""
    return name.upper().replace("-", "_")


def check_secret_name(name: str) -> None:
    """Raise ValueError for a secret whose variable has a meaning for programs, as it would change how they start."""
    told = secret_variable(name)
    if told.startswith("HOPSML_"):
        raise ValueError(
            f"secret {name} would be {told}, and names with this prefix are reserved for hopsml; rename it"
        )
    if told in _READ_BY_PROGRAMS or told.startswith(_BEGINNINGS):
        raise ValueError(
            f"secret {name} would be {told}, which the system, Python, Spark or CUDA read at their start; rename it, for "
            f"instance to my-{name:.60}"
        )


def check_secret_value(name: str, value: str) -> None:
    """Raise ArgumentError for a value that does not fit into a variable, or that could not be masked in output."""
    if (
        len(value.encode(errors="replace")) > MOST_SECRET_BYTES
        or "\0" in value
        or value != value.encode(errors="replace").decode()
    ):
        raise ArgumentError(
            f"secret {name}: a value is text of at most {MOST_SECRET_BYTES} bytes, without NUL; store larger "
            "ones in a file that only you can read"
        )
    if not redact.is_maskable(value):
        raise ArgumentError(
            f"secret {name}: its value is too short, a usual word or a path, and could not be masked in records and "
            f"messages: a secret has {redact.SHORTEST} characters at least, 8 if they are all digits or lower-case letters"
        )


MEMORY_PATTERN = r"^[1-9][0-9]{0,8}[mgt]$"
DURATION_PATTERN = r"^[1-9][0-9]{0,8}[smhd]$"
_MIB = {"m": 1, "g": 1 << 10, "t": 1 << 20}
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def memory_mib(text: object) -> int:
    """Parse ``512m``, ``16g`` or ``1t`` to MiB. Raises ValueError for other texts, and above ``limits.MEMORY_MIB``."""
    if not isinstance(text, str) or not re.fullmatch(MEMORY_PATTERN, text):
        raise ValueError("memory is a whole number with a unit, m (MiB), g (GiB) or t (TiB): write 512m or 16g")
    if (found := int(text[:-1]) * _MIB[text[-1]]) > limits.MEMORY_MIB:
        raise ValueError(f"a worker has at most {memory_text(limits.MEMORY_MIB)}; request less, with more workers")
    return found


def memory_text(mib: int) -> str:
    """Return the shortest text that ``memory_mib`` parses to this size."""
    unit = max((unit for unit, size in _MIB.items() if mib % size == 0), key=_MIB.__getitem__)
    return f"{mib // _MIB[unit]}{unit}"


def duration_s(text: object) -> int:
    """Parse ``90s``, ``15m``, ``2h`` or ``1d`` to seconds. Raises ValueError for other texts, and above a leap year."""
    if not isinstance(text, str) or not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError("a duration is a whole number with a unit, s, m (minutes), h or d: write 90s, 15m or 2h")
    if (found := int(text[:-1]) * _SECONDS[text[-1]]) > limits.DURATION_S:
        raise ValueError(f"a duration is at most {duration_text(limits.DURATION_S)}: leave it out for no limit")
    return found


def duration_text(seconds: int) -> str:
    """Return the shortest text that ``duration_s`` parses to this duration."""
    unit = max((unit for unit, size in _SECONDS.items() if seconds % size == 0), key=_SECONDS.__getitem__)
    return f"{seconds // _SECONDS[unit]}{unit}"


Memory = Annotated[
    int,
    BeforeValidator(memory_mib),
    PlainSerializer(memory_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": MEMORY_PATTERN}),
]
Duration = Annotated[
    int,
    BeforeValidator(duration_s),
    PlainSerializer(duration_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]


NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"  # accepted by DNS, YARN's tags and Kubernetes
LABEL_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,255}$"
# A character of a file name or URL. Others would separate entries of Spark's lists (, #), match several files (* ? [ {
# }), or be decoded to other characters (% and backslash).
FILE_LETTER = r"""[^:,#%?*\[\]{}\\"\x00-\x1f\x7f]"""
URL_PATTERN = r"""^[a-z][a-z0-9+.-]*://[^,#%?*\[\]{}\\"\x00-\x20\x7f]+$"""


def _rule(pattern: str, rule: str) -> AfterValidator:
    """Return a validator that raises ValueError with a rule unless the text matches the pattern."""
    known = re.compile(pattern)

    def check(text: str) -> str:
        if not known.fullmatch(text) or text.endswith("\n"):  # $ also matches before a trailing line break
            raise ValueError(rule)
        return text

    return AfterValidator(check)


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names, if they are unique. Raises ValueError for duplicates."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]} stands there twice: name each once")
    return names


_name = _rule(
    NAME_PATTERN,
    "a name has 1 to 63 lower-case letters, digits and hyphens, a letter or digit at both ends: write train-2",
)
_label = _rule(
    LABEL_PATTERN,
    "a label has 1 to 63 letters, digits, '-', '_' and '.', a letter or digit at both ends: write team-a",
)
_in_the_code = "it lies outside of the code, and only what is in it travels: write its path from there"


def check_in_the_code(file: str) -> None:
    """Raise ValueError if a path leads out of the code."""
    if file.startswith("/") or ".." in file.split("/"):
        raise ValueError(_in_the_code)


_variable = _rule(
    VARIABLE_PATTERN, "a variable's name has letters, digits and '_', and no digit in front: write DATA_DIR"
)

Name = Annotated[str, _name, WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]
Names = Annotated[tuple[Name, ...], AfterValidator(_different)]
Label = Annotated[str, _label, WithJsonSchema({"type": "string", "pattern": LABEL_PATTERN})]
Variable = Annotated[str, _variable, WithJsonSchema({"type": "string", "pattern": VARIABLE_PATTERN})]
