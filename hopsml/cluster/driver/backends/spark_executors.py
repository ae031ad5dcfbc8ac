"""State of the executors granted to Spark, and resource profiles for the jobs that request agents.

Spark's status tracker lists only executors that have registered with the driver. An executor that was granted and cannot
reach the driver never registers: a standalone master reports it in the client's messages, YARN counts its container.

Agents with and without a GPU have profiles of their own. With a fixed number of executors both kinds run on the
application's executors, by profiles of the task alone. Under dynamic allocation Spark refuses profiles of a task alone, or
starts executors like the application's for them: each kind then specifies executors, with and without GPUs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopsml.core import proxies
from hopsml.core.callbacks import nonblocking_logger
from hopsml.submission.spark_command import spark_submit_path


def driver_addresses(setting: Callable[[str, str], str]) -> tuple[str, str]:
    """Return the address at which Spark's driver listens, and the one that it announces, without IPv6 brackets.

    Args:
        setting: returns a setting of the application by name and default.
    """
    announced = setting("spark.driver.host", "127.0.0.1")
    return setting("spark.driver.bindAddress", announced).strip("[]"), announced.strip("[]")


class ResourceProfiles:
    """Resource profiles of one application, each made once: executors that Spark has started for one serve no other."""

    def __init__(self, context: Any, setting: Callable[[str, str], str]) -> None:
        """Use this context; ``setting`` returns a setting of the application by name and default."""
        self._context, self._setting = context, setting
        self._made: dict[bool, Any] = {}
        self._refusal: str | None = None

    def _number(self, key: str, default: int) -> int:
        """Return a setting as a number."""
        return int(self._setting(key, str(default)))

    @property
    def dynamic(self) -> bool:
        """True if Spark requests executors when tasks wait for them (dynamic allocation)."""
        return self._setting("spark.dynamicAllocation.enabled", "false") == "true"

    @property
    def gpus(self) -> int:
        """Number of GPUs of each of the application's own executors."""
        return self._number("spark.executor.resource.gpu.amount", 0)

    @property
    def every_task_has_a_gpu(self) -> bool:
        """True if the application's tasks get GPUs without a profile."""
        return float(self._setting("spark.task.resource.gpu.amount", "0")) > 0

    def profile_for(self, bare: bool) -> Any:
        """Return the profile for agents of this kind; None if they need none."""
        if not self.gpus or (self.every_task_has_a_gpu and not bare) or (bare and self._any_task_is_bare):
            return None
        if bare not in self._made:
            self._made.setdefault(bare, self._make(bare))  # two threads may each make one: the first one stored counts
        return self._made[bare]

    @property
    def _any_task_is_bare(self) -> bool:
        """True if tasks without a profile get no GPU."""
        return not self.dynamic and not self.every_task_has_a_gpu

    def _make(self, bare: bool) -> Any:
        """Make the profile for agents of this kind."""
        from pyspark.resource import ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests

        of_task = TaskResourceRequests().cpus(self._number("spark.task.cpus", 1))
        builder = ResourceProfileBuilder().require(of_task if bare else of_task.resource("gpu", 1))
        if self.dynamic:  # a profile of a task alone is refused, or gets executors like the application's
            of_executor = ExecutorResourceRequests().cores(self._number("spark.executor.cores", 1))
            script = self._setting("spark.executor.resource.gpu.discoveryScript", "")
            builder = builder.require(of_executor if bare else of_executor.resource("gpu", self.gpus, script))
        return builder.build

    def why_no_bare_agents(self) -> str:
        """Return why this Spark provides no agents without a GPU although executors have some; "" if it does.

        The answer is cached.
        """
        if self._refusal is None:
            profile = self.profile_for(bare=True)
            self._refusal = self._refused(profile) if profile is not None else ""
        return self._refusal

    def _refused(self, profile: Any) -> str:
        """Return Spark's reason for refusing a profile; "" if it accepts it."""
        try:
            self._context._jsc.sc().resourceProfileManager().isSupported(profile._java_resource_profile)
        except Exception as error:  # noqa: BLE001 py4j raises it for Spark's SparkException or a missing method
            java = getattr(error, "java_exception", None)
            return str(java.getMessage() if java is not None else error).splitlines()[0][:300]
        return ""


log = nonblocking_logger("hopsml.spark")

_SOURCES = (
    "org.apache.spark.deploy.client.StandaloneAppClient$ClientEndpoint",
    "org.apache.spark.scheduler.cluster.YarnSchedulerBackend$YarnSchedulerEndpoint",
)
_MOST_CHARACTERS = 1 << 20
_GRANTED = re.compile(r"^Executor added: (\S+) on (?:\S*-)?\S+ \((\S+?):\d+\)")
_ENDED = re.compile(r"^Executor updated: (\S+) is now (?:EXITED|FAILED|KILLED|LOST)(?: \((.*)\))?")
_REMOVED = re.compile(r"^Requesting driver to remove executor (\S+) for reason (.*)")
TAIL_LINES = 12
_LOG_BYTES = 8192
_WEB_TIMEOUT_S = 3.0
HOWTO = "docs/how-to/firewalls.md"


@dataclass
class Launches:
    """Granted executors by id: the host of each, and the exit reason of each that has ended."""

    hosts: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)

    @property
    def granted(self) -> int:
        """Number of executors known to have been granted."""
        return len(self.hosts.keys() | self.ended.keys())


def parse(messages: str) -> Launches:
    """Parse the launches from Spark's messages, one per line; lines after an executor's end belong to its exit reason."""
    found, last = Launches(), ""
    for line in messages.splitlines():
        if granted := _GRANTED.match(line):
            found.hosts[granted[1]], last = granted[2], ""
        elif ended := _ENDED.match(line) or _REMOVED.match(line):
            last = ended[1]
            found.ended[last] = ended[2] or ""
        elif line.startswith("Executor updated:"):
            last = ""
        elif last:
            found.ended[last] += f"\n{line}"
    return found


def why_no_executor(launches: Launches, containers: int | None, address: str, last_lines: Sequence[str] = ()) -> str:
    """Return the error message that explains why no executor has registered with the driver.

    Args:
        launches: the executors that were granted.
        containers: number of the application's executor containers now; None if the cluster manager does not report it.
        address: host:port that the driver announces to executors.
        last_lines: the end of the log of an executor that has ended.
    """
    reach = (
        f"An executor must reach the driver at {address} (spark.driver.host and spark.driver.port) and at "
        "spark.blockManager.port: on a host with several addresses set SPARK_LOCAL_IP or spark.driver.host; with a "
        f"firewall set fixed values for both ports. All of these are keys of the profile ({HOWTO})"
    )
    if not launches.granted and containers == 0:
        return "Spark has granted no executor: the cluster is full, or spark.executor.* requests more than a node has"
    if not launches.granted and containers is None:
        return (
            "no executor has registered with the driver: the cluster is full, spark.executor.* requests more than a "
            f"node has, or executors were granted but cannot reach the driver. {reach}"
        )
    granted = max(launches.granted, (containers or 0) + len(launches.ended))
    text = f"Spark was granted {granted} executor{'s' * (granted > 1)}, of which none has registered with the driver"
    if launches.ended:
        reason = list(launches.ended.values())[-1].strip()
        first, _, rest = reason.partition("\n")
        lines = list(last_lines) or rest.splitlines()
        shown = "".join(f"\n    {line}" for line in lines[-TAIL_LINES:])
        text += f"; {len(launches.ended)} of them ended: {first}" + (f"; its last lines:{shown}\n" if shown else "")
    return f"{text.rstrip(chr(10))}. {reach}" if not text.endswith("\n") else f"{text}{reach}"


class ExecutorMessages:
    """Collector of the messages about executors that Spark's scheduler logs below the visible level."""

    def __init__(self, jvm: Any) -> None:
        """``jvm``: py4j's view of the driver's JVM, with a SparkContext or before there is one."""
        self._writer = jvm.java.io.StringWriter()
        log4j = jvm.org.apache.logging.log4j
        core = log4j.core
        context = log4j.LogManager.getContext(False)
        configuration = context.getConfiguration()
        layout = core.layout.PatternLayout.createDefaultLayout()
        appender = core.appender.WriterAppender.createAppender(layout, None, self._writer, "hopsml", False, True)
        appender.start()
        root = configuration.getRootLogger()
        for name in _SOURCES:
            collected = core.config.LoggerConfig(name, log4j.Level.INFO, False)
            collected.addAppender(appender, log4j.Level.INFO, None)
            for shown in root.getAppenders().values():
                collected.addAppender(shown, root.getLevel(), None)
            configuration.addLogger(name, collected)
        context.updateLoggers()

    def launches(self) -> Launches:
        """Return the executors granted so far, with their exit reasons."""
        text = str(self._writer.toString())
        if len(text) > _MOST_CHARACTERS:
            self._writer.getBuffer().setLength(0)
        return parse(text)


def collect(jvm: Any) -> ExecutorMessages | None:
    """Start to collect Spark's messages about executors; return None if Spark does not log through log4j 2."""
    try:
        return ExecutorMessages(jvm)
    except Exception as error:  # noqa: BLE001 py4j raises it if another logging system is configured
        log.debug("Spark's messages about executors cannot be collected: %s", error)
        return None


def containers_of(context: Any) -> int | None:
    """Return the number of executor containers that YARN counts for the application; None on other cluster managers."""
    if context.master != "yarn":
        return None
    jvm, spark = context._jvm, context._jsc.sc()
    conf = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration(spark.hadoopConfiguration())
    conf.setLong("yarn.resourcemanager.connect.max-wait.ms", 2000)
    client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
    try:
        client.init(conf)
        client.start()
        application = jvm.org.apache.hadoop.yarn.api.records.ApplicationId.fromString(context.applicationId)
        used = client.getApplicationReport(application).getApplicationResourceUsageReport().getNumUsedContainers()
        return max(0, int(used) - 1)  # one is the application master's
    except Exception as error:  # noqa: BLE001 a ResourceManager that is unreachable
        log.debug("YARN's number of containers cannot be read: %s", error)
        return None
    finally:
        client.stop()


def last_lines(context: Any, executor: str) -> list[str]:
    """Return the last lines of a standalone cluster's executor log ("app/number"); empty if the log cannot be read."""
    application, _, number = executor.partition("/")
    if not number:
        return []
    try:
        text = _of_this_machine(application, number) or _of_worker(context, application, number)
    except Exception as error:  # noqa: BLE001 an unreachable worker; py4j's, for a master that does not answer
        log.debug("the log of executor %s cannot be read: %s", executor, error)
        return []
    return [line for line in text.splitlines() if line.strip()][-TAIL_LINES:]


def _of_this_machine(application: str, number: str) -> str:
    """Return the log of a local-cluster's executor, from Spark's installation unless a variable names another folder."""
    for folder in (
        Path(os.environ.get("SPARK_WORKER_DIR") or os.devnull),
        Path(spark_submit_path()).parents[1] / "work",
    ):
        file = folder / application / number / "stderr"
        if file.is_file():
            return file.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    return ""


def _of_worker(context: Any, application: str, number: str) -> str:
    """Return the executor's log from the web page of the worker that ran it, found among those that the master lists."""
    if not context.master.startswith("spark://"):
        return ""
    jvm, host_port = context._jvm, context.master.removeprefix("spark://").partition(",")[0]
    host, _, port = host_port.rpartition(":")
    spark, classes = jvm.org.apache.spark, jvm.java.lang.Class
    master = context._jsc.sc().env().rpcEnv().setupEndpointRef(spark.rpc.RpcAddress(host, int(port)), "Master")
    question = (
        classes.forName("org.apache.spark.deploy.DeployMessages$RequestMasterState$").getField("MODULE$").get(None)
    )
    answer = classes.forName("org.apache.spark.deploy.DeployMessages$MasterStateResponse")
    for worker in master.askSync(question, jvm.scala.reflect.ClassTag.apply(answer)).workers():
        query = f"appId={application}&executorId={number}&logType=stderr&byteLength={_LOG_BYTES}"
        address = f"{worker.webUiAddress()}/log?{query}"
        with proxies.opener(address).open(address, timeout=_WEB_TIMEOUT_S) as page:
            head, _, body = page.read(2 * _LOG_BYTES).decode(errors="replace").partition("\n")
        if head.startswith("==== Bytes ") and body.strip():
            return str(body)
    return ""


# Spark 4: "Python in worker has different version: 3.10 than that in driver: 3.11"; Spark 3 has no colons.
_OTHER_PYTHON = re.compile(r"worker has different version:? \(?([\d., ]+)\)? than that in driver:? \(?([\d., ]+\d)")


def job_failure(error: Exception, python_of_executors: str = "") -> str:
    """Return the relevant line of an error: the last of a Python traceback from an executor, else Spark's first.

    Args:
        error: error of the Spark job that holds the agents.
        python_of_executors: interpreter that Spark starts on executors, as it is configured; "" if it is unknown.
    """
    text = str(error).strip() or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"^[A-Za-z_.]*(Error|Exception): ", line) and "org.apache" not in line]
    if python and python[-1].startswith("ModuleNotFoundError"):
        which = f" ({python_of_executors})" if python_of_executors else ""
        return (
            f"the executors' Python{which} cannot start an agent: {python[-1]}; before the Spark session is created, set "
            "PYSPARK_PYTHON to the Python of an environment with hopsml on every node (on this machine "
            f"{sys.executable}), or ship one with spark.archives"
        )
    if found := _OTHER_PYTHON.search(text):
        theirs, ours = (version.replace(", ", ".") for version in found.groups())
        return (
            f"the executors have Python {theirs}, the driver has Python {ours}; set PYSPARK_PYTHON to a Python {ours} "
            "with hopsml on every node, or ship one with spark.archives"
        )
    cause = python[-1] if python else next((line for line in lines if "aborted" in line), lines[0])
    return f"the Spark job that holds the agents failed: {cause[:500]}"
