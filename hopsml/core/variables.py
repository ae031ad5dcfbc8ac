"""All environment variables of hopsml, as attributes of one object: ``SETTINGS.storage_timeout_s``.

Each attribute has a type, a default and a text; ``Settings.storage_timeout_s.name`` is the variable's name. Variables are
read at each access, so that a change takes effect at once. An invalid value raises ArgumentError.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar, overload

from hopsml.errors import ArgumentError

LARGEST_SEED = 2**32 - 1  # limit of numpy's and Keras's generators
_LARGEST_UI_MB = 1 << 20
_DIGITS = 18  # of whole numbers
T = TypeVar("T")


class Variable(Generic[T]):
    """An environment variable; an attribute of ``Settings``.

    Attributes:
        name: name of the variable, ``HOPSML_`` and the attribute's name.
        text: its meaning, in one line.
        unit: unit of its value; empty for text.
        default: its text if it is not set.
    """

    def __init__(
        self, text: str, parse: Callable[[str, str], T], *, default: str = "", unit: str = "", name: str = ""
    ) -> None:
        self.text, self.unit, self.default, self.name = text, unit, default, name
        self._parse = parse

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.name = self.name or f"HOPSML_{attribute.upper()}"

    @overload
    def __get__(self, settings: None, owner: type) -> Variable[T]: ...

    @overload
    def __get__(self, settings: Settings, owner: type) -> T: ...

    def __get__(self, settings: Settings | None, owner: type) -> Variable[T] | T:
        if settings is None:
            return self
        return self._parse(self.name, settings.environment.get(self.name, "") or self.default)


def _text(name: str, text: str) -> str:
    return text


def _is_one(name: str, text: str) -> bool:
    return text == "1"


def _names(name: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _attempt(name: str, text: str) -> int:
    if not _is_number(text) or int(text) < 1:
        raise ArgumentError(f"{name}={text!r}: it must be a whole number from 1; hopsml sets it itself, so unset it")
    return int(text)


def _is_number(text: str) -> bool:
    """Return True for a whole number from 0 of at most ``_DIGITS`` digits; ``int`` refuses thousands of them."""
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS


def _seconds(
    default_s: float, which: str, least: float = 0.0, most: float = sys.float_info.max
) -> Callable[[str, str], float]:
    """Return the parser of a number of seconds; ``which`` describes the allowed ones in the error."""

    def parse(name: str, text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not least <= seconds <= most:
            raise ArgumentError(
                f"{name}={text!r}: the value must be a number of seconds{which}; unset the variable for the default "
                f"of {default_s:g} s"
            )
        return seconds

    return parse


def _port_range(name: str, text: str) -> tuple[int, int] | None:
    if not text:
        return None
    first, dash, last = text.partition("-")
    if not (dash and _is_number(first) and _is_number(last) and 1 <= int(first) <= int(last) <= 65535):
        raise ArgumentError(
            f"{name}={text!r}: the value must be two port numbers, low-high, from 1 to 65535, for instance 40000-40100"
        )
    return int(first), int(last)


def _slots(name: str, text: str) -> int | None:
    if not text:
        return None
    if not _is_number(text) or int(text) < 1:
        raise ArgumentError(
            f"{name}={text!r}: the value must be a whole number, 1 or more; unset the variable to "
            "use the number of the profile"
        )
    return int(text)


def _seed(name: str, text: str) -> int | None:
    if not text:
        return None
    if not _is_number(text) or int(text) > LARGEST_SEED:
        raise ArgumentError(
            f"{name}={text!r}: a seed must be a whole number from 0 to {LARGEST_SEED}; unset the "
            "variable for a random seed"
        )
    return int(text)


def _cores(name: str, text: str) -> int | None:
    if text != "auto" and not _is_number(text):
        raise ArgumentError(
            f"{name}={text!r}: the value must be the number of cores of each worker, 0 to assign no cores, or auto"
        )
    return None if text == "auto" else int(text)


def _encryption(name: str, text: str) -> bool:
    if text not in ("0", "1"):
        raise ArgumentError(
            f"{name}={text!r}: the value must be 1 to encrypt all runs, or 0 to encrypt only runs with encryption=True"
        )
    return text == "1"


def _megabytes(name: str, text: str) -> int:
    if not _is_number(text) or not 1 <= int(text) <= _LARGEST_UI_MB:
        raise ArgumentError(f"{name}={text!r}: the value must be a whole number of megabytes, 1 to {_LARGEST_UI_MB}")
    return int(text) << 20


def _bytes(name: str, text: str) -> int:
    if not _is_number(text):
        raise ArgumentError(f"{name}={text!r}: the value must be a number of bytes, or 0 for no cache")
    return int(text)


class Settings:
    """The variables of hopsml in one environment: of this process (``SETTINGS``), or of a run.

    Attributes:
        environment: the variables by name; changes of it take effect at once.
    """

    # Cluster and project
    profile = Variable("profile: name of a file in conf/", _text)
    conf_dir = Variable("folder with profiles, instead of the default folders", _text)
    spark_master = Variable("Spark's master, instead of the profile's", _text)
    local_slots = Variable("concurrent workers under a profile without Spark; None: the profile's", _slots)
    project_url = Variable("URL of the project's folder", _text)
    project = Variable("the project's name", _text)
    port_range = Variable("ports that hopsml's processes use (first, last); None: any", _port_range)
    server = Variable("address of the job service", _text)
    token = Variable("token for the job service", _text)
    server_ca = Variable("PEM file of certificates that are trusted in addition to the system's", _text)
    ca_bundle = Variable("PEM file of certificates that Hadoop's web services have, instead of ssl-client.xml's", _text)
    sign_in_secret = Variable("client secret of the job service at its OpenID provider", _text)
    server_state = Variable("folder of the job service's data", _text)
    secrets_key = Variable("key with which the job service encrypts secrets, base64", _text)
    python = Variable("for Airflow: Python interpreter with Spark and the frameworks", _text)

    # Runs
    seed = Variable("seed of runs; None: drawn for each run", _seed)
    share = Variable("users who may read the files of runs", _text)
    progress = Variable("display of progress: lines, display or auto", _text)
    traceback = Variable('"full": tracebacks have hopsml\'s own frames, too', _text)
    storage_timeout_s = Variable(
        "deadline of one remote call, or of one chunk of a transfer",
        _seconds(30.0, " above 0", least=sys.float_info.min),
        default="30",
        unit="s",
    )
    storage_retry_s = Variable(
        "time for which the last files of a run are retried if its store refuses them or is unavailable",
        _seconds(600.0, ", or 0 for a single attempt"),
        default="600",
        unit="s",
    )
    # A shorter one would count an agent as lost that misses two of its heartbeats, one a second.
    lease_s = Variable(
        "silence after which driver and agents count each other as lost",
        _seconds(10.0, " from 3 to 300", least=3.0, most=300.0),
        default="10",
        unit="s",
    )
    # Firewalls drop the state of idle connections after a minute or more.
    keepalive_s = Variable(
        "silence after which workers probe a TCP connection; 0: no keepalive",
        _seconds(15.0, ", or 0 for no keepalive"),
        default="15",
        unit="s",
    )
    system_metrics_s = Variable(
        "interval at which a worker's resource usage is sampled; 0: never",
        _seconds(5.0, ", or 0 to take no samples"),
        default="5",
        unit="s",
    )
    # The default is Kubernetes', and the least of the cloud providers.
    drain_s = Variable(
        "time from a node's warning to its end, for clusters that do not report it",
        _seconds(30.0, ", or 0 to release the node at once"),
        default="30",
        unit="s",
    )
    cores = Variable("separate cores of each worker; 0: not assigned, None: an even share", _cores, default="auto")
    encryption = Variable("True: hopsml's collective encrypts in all runs", _encryption, default="0")
    ui_memory_bytes = Variable(
        "cached data of viewed runs (the variable is in megabytes)",
        _megabytes,
        default="256",
        unit="bytes",
        name="HOPSML_UI_MEMORY_MB",
    )
    any_version = Variable("True: versions that are not supported are not refused", _is_one)
    mlflow = Variable('"0": no run is sent to MLflow', _text)
    serving_folder = Variable("folder for tokens, logs and copies of models of servings", _text)
    serving_token = Variable("token for a serving on another machine", _text)
    unguarded_server = Variable("True: TensorFlow's server accepts all clients", _is_one)
    model_cache = Variable("private folder for copies of models", _text)
    data_cache = Variable("private folder for data that data sets read", _text)
    data_cache_bytes = Variable("its maximum size; 0: no cache", _bytes, default=str(10 << 30), unit="bytes")
    token_kinds = Variable(
        "kinds of delegation tokens that workers receive besides HDFS's and its key server's", _names
    )
    trusted_owners = Variable("users whose files may determine which code runs", _names)

    # Set by hopsml itself
    run_id = Variable("the run that a worker belongs to", _text)
    own_file = Variable("a process's own token file, and the one with which it was started, JSON", _text)
    local_logdir = Variable("True in a run with local_logdir=True", _is_one)
    hdfs_client = Variable("settings of TensorFlow's hdfs://, key=value separated by commas", _text)
    logging = Variable("configuration of logging of the script", _text)
    address = Variable("host and port that the agent reserves for its worker", _text, default="127.0.0.1:0")
    group_variables = Variable("names of the group variables that hopsml has set", _names)
    fork_server = Variable("mark of a fork server and its child processes", _text)
    mlflow_run = Variable("True if the run is sent to MLflow", _is_one)
    application_id = Variable("name under which a driver records its runs", _text)
    application_attempt = Variable("number of this attempt, from 1", _attempt, default="1")
    job_tag = Variable("tag of a driver that the job service has started", _text)
    job_slots = Variable("workers with which the driver of an elastic task begins", _text)
    job_record = Variable("URL of the file in which a driver records its run", _text)
    submit_conf = Variable("Spark settings with secrets, JSON", _text)
    job_folder = Variable("URL of the folder of task addresses of a job's try", _text)
    job_tasks = Variable("names of the tasks of the job with ports, JSON", _text)
    job_secrets_key = Variable("key of the secrets that the job service has stored for a driver", _text)
    dataset = Variable("the dataset of the worker's job", _text)
    job_workspace = Variable("URL of the folder that the tasks of a job share, if its file has workspace: true", _text)
    workspace = Variable("path or URL of the folder that the tasks of the worker's job share", _text)

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    def check(self, names: Iterable[str]) -> None:
        """Raise ArgumentError if one of the variables with these names has an invalid value; ignore other names."""
        for name in names:
            if name in VARIABLES:
                VARIABLES[name].__get__(self, Settings)


SETTINGS = Settings(os.environ)
VARIABLES: dict[str, Variable[object]] = {
    variable.name: variable for variable in vars(Settings).values() if isinstance(variable, Variable)
}
