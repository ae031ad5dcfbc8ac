"""Rules for names and values of secrets, and the environment variables that contain them."""

from __future__ import annotations

from hopsml.core import redact
from hopsml.errors import ArgumentError

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
MOST_BYTES = 32 << 10  # most bytes of a value: the variables of a process have a limited total size


def variable(name: str) -> str:
    """Return the environment variable of a secret: ``s3-key`` is S3_KEY."""
    return name.upper().replace("-", "_")


def check_name(name: str) -> None:
    """Raise ValueError for a secret whose variable has a meaning for programs, as it would change how they start."""
    told = variable(name)
    if told.startswith("HOPSML_"):
        raise ValueError(f"secret {name} would be {told}, and hopsml's own variables begin so: rename it")
    if told in _READ_BY_PROGRAMS or told.startswith(_BEGINNINGS):
        raise ValueError(
            f"secret {name} would be {told}, by which the system, Python, Spark or CUDA know how to start: rename it, for "
            f"instance to my-{name:.60}"
        )


def check_value(name: str, value: str) -> None:
    """Raise ArgumentError for a value that does not fit into a variable, or that could not be masked in output."""
    if (
        len(value.encode(errors="replace")) > MOST_BYTES
        or "\0" in value
        or value != value.encode(errors="replace").decode()
    ):
        raise ArgumentError(
            f"secret {name}: a value is text of at most {MOST_BYTES} bytes, without NUL: keep what is larger in a file that "
            "only you can read"
        )
    if not redact.is_telling(value):
        raise ArgumentError(
            f"secret {name}: its value is too short, a usual word or a path, and could not be masked in records and "
            f"messages: a secret has {redact.SHORTEST} characters at least, 8 if they are all digits or lower-case letters"
        )
