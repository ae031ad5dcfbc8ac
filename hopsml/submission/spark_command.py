"""Command line and environment of spark-submit for a script under a profile, also shown by ``--dry-run``.

All users of a machine can read the arguments of processes. Settings that must not appear there are hidden: spark-submit
gets them as a properties file that exists only in memory; a ``hopsml submit`` started by another program of hopsml gets
them in an environment variable, which only the same user can read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from hopsml.core import delegation_tokens, extras, redact
from hopsml.core.profiles import Profile
from hopsml.core.variables import Settings
from hopsml.errors import ArgumentError
from hopsml.submission import spark_connect
from hopsml.submission.script import check_py_files
from hopsml.submission.shipping import Shipment, check_imports

WITHOUT_CLUSTER = "`hopsml submit --profile local` runs a script on this machine, without Spark"


def spark_submit_path() -> str:
    """Return the path of spark-submit: that of $SPARK_HOME, else of the installed pyspark, else the one on PATH.

    Raises:
        ArgumentError: there is no spark-submit.
    """
    home = os.environ.get("SPARK_HOME")
    candidates = [Path(home, "bin", "spark-submit")] if home else []
    spec = find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "bin" / "spark-submit")
    found = next((str(path) for path in candidates if path.is_file()), None) or shutil.which("spark-submit")
    if found is None:
        raise ArgumentError(
            f"spark-submit was not found; set SPARK_HOME, or install pyspark ({extras.install_command('spark')}); "
            f"{WITHOUT_CLUSTER}"
        )
    return found


HIDDEN_VARIABLE = Settings.submit_conf.name  # JSON: settings for ``hopsml submit``
_VARIABLES = ("spark.executorEnv.", "spark.yarn.appMasterEnv.", "spark.kubernetes.driverEnv.")


def must_be_hidden(key: str, value: str) -> bool:
    """Return True if a setting must not be in a command line.

    Such settings contain a secret, or set any environment variable of the driver or of executors.
    """
    return key.startswith(_VARIABLES) or redact.is_secret(key) or redact.text(value) != value


def split_hidden(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split the settings into those that any user may read, and those to hide."""
    hidden = {key: value for key, value in settings.items() if must_be_hidden(key, value)}
    return {key: value for key, value in settings.items() if key not in hidden}, hidden


def split_command(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return spark-submit's command line without the ``--conf`` settings to hide, and those settings."""
    line, hidden, at = [command[0]], {}, 1
    while at + 1 < len(command) and command[at].startswith("--"):
        key, _, value = command[at + 1].partition("=")
        if command[at] == "--conf" and must_be_hidden(key, value):
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


def read_spark_defaults(program: str, environment: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """Return what makes spark-submit read spark-defaults.conf besides a properties file.

    Spark 4 has an option for it. To older versions the file's content is passed at the beginning of the properties file,
    where later lines take precedence.

    Args:
        program: spark-submit, as a path or a name on the environment's PATH.
        environment: variables of spark-submit.

    Returns:
        The content to pass, and the options.
    """
    path = Path(shutil.which(program, path=environment.get("PATH")) or program).resolve()
    homes = [Path(environment["SPARK_HOME"])] if environment.get("SPARK_HOME") else []
    for home in (*homes, path.parent.parent):
        if any(home.glob("jars/spark-core_*-3.*.jar")):
            folder = environment.get("SPARK_CONF_DIR")
            file = (Path(folder) if folder else home / "conf") / "spark-defaults.conf"
            return (file.read_bytes() + b"\n" if file.is_file() else b""), []
    return b"", ["--load-spark-defaults"]


def pop_hidden_settings(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Return the settings in the variable ``HIDDEN_VARIABLE``, and remove it, so that no child process inherits it.

    Raises:
        ArgumentError: if it is no JSON object.
    """
    text = Settings(environment).submit_conf
    environment.pop(HIDDEN_VARIABLE, None)
    try:
        settings = json.loads(text or "{}")
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise ArgumentError(f"{HIDDEN_VARIABLE} must contain a JSON object of Spark settings")
    return {str(key): str(value) for key, value in settings.items()}


_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*\d+\s*,(.*)\]")
# Variables of the caller that also configure a driver in a YARN container: they take precedence over the profile's.
_CARRIED = (
    *("HOPSML_PROJECT", "HOPSML_PROJECT_URL", "HOPSML_SHARE", "HOPSML_SEED", "HOPSML_ENCRYPTION", "HOPSML_PORT_RANGE"),
    *("HOPSML_CORES", "HOPSML_DRAIN_S", "HOPSML_STORAGE_TIMEOUT_S", "HOPSML_SYSTEM_METRICS_S", "HOPSML_TRUSTED_OWNERS"),
    *("HOPSML_KEEPALIVE_S", "HOPSML_LEASE_S", "HOPSML_STORAGE_RETRY_S", "HOPSML_TOKEN_KINDS", "HOPSML_CA_BUNDLE"),
    *("HOPSML_TRACEBACK", "HOPSML_ANY_VERSION"),
    *("HOPSML_MLFLOW", "MLFLOW_TRACKING_URI"),
)


def build_command(
    profile: Profile,
    script: str,
    arguments: Sequence[str] = (),
    *,
    num_workers: int | None = None,
    conf: Mapping[str, str] | None = None,
    tags: Sequence[str] = (),
    shipment: Shipment | None = None,
) -> list[str]:
    """Return the command line that runs a script under a profile.

    Under a profile without Spark the script is started by this interpreter.

    Args:
        profile: determines where the script runs.
        script: path of the script.
        arguments: arguments of the script.
        num_workers: number of executors; None for the profile's.
        conf: Spark's settings, which take precedence over the profile's.
        tags: YARN tags by which the application can be found; with them, in YARN's cluster mode, spark-submit ends
            after the submission.
        shipment: the environment that is shipped.

    Raises:
        ArgumentError: for a script that does not exist, has a syntax error, or imports modules that will be missing;
            for a missing file of spark.submit.pyFiles, and for Spark's settings under a profile without Spark.
        ClusterError: for variables of Spark Connect.
    """
    shipment = shipment or Shipment()
    if not profile.uses_spark:
        check_imports(script, shipment, {}, profile)
        return [*_without_spark(profile, num_workers, conf or {}), sys.executable, script, *arguments]
    spark_connect.check_submission()
    settings = spark_settings(profile, num_workers=num_workers, conf=conf)
    if tags:
        named = [tag for tag in settings.get("spark.yarn.tags", "").split(",") if tag]
        settings["spark.yarn.tags"] = ",".join([*named, *tags])
        if profile.deploy_mode == "cluster":
            settings["spark.yarn.submit.waitAppCompletion"] = "false"
    settings |= shipment.settings(settings, profile.deploy_mode)
    check_py_files(settings.get("spark.submit.pyFiles", ""))
    check_imports(script, shipment, settings, profile)
    line = [
        spark_submit_path(),
        "--master",
        _master(profile.master, num_workers),
        "--deploy-mode",
        profile.deploy_mode,
    ]
    for key, value in settings.items():
        line += ["--conf", f"{key}={value}"]
    return [*line, script, *arguments]


def _without_spark(profile: Profile, num_workers: int | None, conf: Mapping[str, str]) -> list[str]:
    """Return the beginning of the command line that sets the script's variables.

    Raises:
        ArgumentError: for Spark's settings.
    """
    if conf:
        raise ArgumentError(
            f"{sorted(conf)[0]}: profile '{profile.name}' runs without Spark, and --conf and --py-files are settings "
            "of Spark; omit them, or choose another profile with --profile"
        )
    slots = [] if num_workers is None else [f"HOPSML_LOCAL_SLOTS={num_workers}"]
    return ["/usr/bin/env", f"HOPSML_PROFILE={profile.name}", *slots]


def _master(master: str, num_workers: int | None) -> str:
    """Return the master, with ``num_workers`` executors if it includes their number."""
    found = _LOCAL_CLUSTER.fullmatch(master)
    return master if found is None or num_workers is None else f"local-cluster[{num_workers},{found[1]}]"


def spark_settings(
    profile: Profile, *, num_workers: int | None = None, conf: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return Spark's settings: the profile's, then ``num_workers`` executors, then ``conf``.

    With dynamic allocation ``num_workers`` is the largest number of executors. A driver in a YARN container does not
    inherit this process's environment: its variables (the profile's and HOPSML_PROJECT_URL) are then among the
    settings.
    """
    settings = profile.settings()
    if num_workers is not None:
        asked = {**settings, **(conf or {})}
        dynamic = asked.get("spark.dynamicAllocation.enabled") == "true"
        key = "spark.dynamicAllocation.maxExecutors" if dynamic else "spark.executor.instances"
        settings[key] = str(num_workers)
        if profile.master.startswith("spark://") and not dynamic and (cores := asked.get("spark.executor.cores")):
            settings["spark.cores.max"] = str(num_workers * int(cores))  # a standalone master counts only cores
    if profile.master.startswith("yarn") and profile.deploy_mode == "cluster":
        for name, value in _for_the_driver(profile).items():
            settings.setdefault(f"spark.yarn.appMasterEnv.{name}", value)
    settings.update(conf or {})
    return settings


def environment(profile: Profile | None = None) -> dict[str, str]:
    """Return the environment of spark-submit: the profile's variables, overridden by the caller's.

    PYSPARK_PYTHON is this interpreter unless the caller has set it.
    """
    named = _for_the_driver(profile) if profile is not None else {}
    own = delegation_tokens.environment_as_given(os.environ)
    return {**named, **own, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}


def _for_the_driver(profile: Profile) -> dict[str, str]:
    """Return the variables that the driver needs, wherever it runs."""
    named = dict(profile.environment)
    if profile.store:
        named.setdefault("HOPSML_PROJECT_URL", profile.store)
    return {**named, **{name: os.environ[name] for name in _CARRIED if os.environ.get(name)}}
