"""Processes of a cluster: launch, search, signals, and detection of their end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.hadoop.errors import DaemonEnded, HadoopError
from tools.hadoop.settings import kind

MAIN_CLASS = {
    "nn": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "dn": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "rm": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nm": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    "jn": "org.apache.hadoop.hdfs.qjournal.server.JournalNode",
    "fc": "org.apache.hadoop.hdfs.tools.DFSZKFailoverController",
    "zk": "org.apache.zookeeper.server.ZooKeeperServerMain",
}
HEAP_MB = {"nn": 96, "dn": 96, "rm": 128, "nm": 96, "jn": 48, "fc": 48, "zk": 48}
CLIENT_HEAP_MB = 128
JVM_FLAGS = [
    "-XX:+UseSerialGC",
    # YARN of Hadoop 3.3 and 3.4 defines classes by reflection, which Java 17 refuses by default
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),  # Hadoop's own classes; a tenth of a start
    "-XX:-UsePerfData",  # otherwise kill -9 leaves a file in /tmp/hsperfdata_USER
    "-Djava.net.preferIPv4Stack=true",
]
# Variables of the caller that would change a daemon, or be inherited by containers.
DROPPED = (
    "HADOOP_", "YARN_", "SPARK_", "PYSPARK_", "HOPSML_", "CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS",
    "PYTHONPATH", "TF_CONFIG", "CUDA_", "TMPDIR",
)  # fmt: skip


def java_command(home: Path, jars: str, name: str, main_class: str, *arguments: str) -> list[str]:
    """Return the command line of a daemon, or of a tool with the settings of a daemon (or ``client``).

    Java does not read KRB5_CONFIG; the file exists in a Kerberized cluster.
    """
    temporary = home / name / "tmp"  # Jetty unpacks there, and kill -9 leaves the files
    temporary.mkdir(parents=True, exist_ok=True)
    heap_mb = HEAP_MB.get(kind(name), CLIENT_HEAP_MB)
    jvm = [f"-Xmx{heap_mb}m", *JVM_FLAGS, f"-Djava.io.tmpdir={temporary}", _marker(home, name)]
    krb5 = home / "kdc" / "krb5.conf"
    jvm += [f"-Djava.security.krb5.conf={krb5}"] if krb5.exists() else []
    jvm += ["-Dzookeeper.admin.enableServer=false"] if kind(name) == "zk" else []
    return ["java", *jvm, "-cp", f"{home / name / 'conf'}:{jars}/*", main_class, *arguments]


def clean_environment() -> dict[str, str]:
    """Return the caller's environment without variables that would change the daemons."""
    return {key: value for key, value in os.environ.items() if not key.startswith(DROPPED)}


def launch(home: Path, jars: str, name: str, arguments: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start the daemon ``name`` in a separate session, with its output appended to ``home/name/log``."""
    with (home / name / "log").open("ab") as log:
        return subprocess.Popen(
            java_command(home, jars, name, MAIN_CLASS[kind(name)], *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home / name,
            env=clean_environment(),
            start_new_session=True,
        )


def run_tool(
    home: Path, jars: str, main_class: str, arguments: Sequence[str], timeout_s: float, ticket: Mapping[str, str]
) -> str:
    """Run one of Hadoop's command-line classes with the client's settings, and return its output.

    ``ticket`` has the variables that name a Kerberos ticket.

    Raises HadoopError with its last output if its exit status is not 0 or ``timeout_s`` seconds are over.
    """
    command = java_command(home, jars, "client", main_class, *arguments)
    tool = f"{main_class.rpartition('.')[2]} {' '.join(arguments)}"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**clean_environment(), **ticket},
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise HadoopError(f"{tool}: did not end within {timeout_s} s; is every daemon alive?") from None
    if done.returncode:
        raise HadoopError(f"{tool}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def running(home: Path, name: str, pid: int) -> bool:
    """Return True if ``pid`` still is this daemon, as pids are reused."""
    for _ in range(100):
        command = _read(pid, "cmdline")
        if command or _process_state(pid) in ("", "Z", "X"):
            break
        time.sleep(0.001)  # during an exec, which java does as it starts, it has none for a moment
    return _marker(home, name).encode() in command.split(b"\0")


def frozen(pid: int) -> bool:
    """Return True if the process was stopped by SIGSTOP."""
    return _process_state(pid) == "T"


def command_of(pid: int) -> list[bytes]:
    """Return the command line of a process; empty if it has ended."""
    return _read(pid, "cmdline").split(b"\0")


def rss_mb(pid: int) -> int:
    """Return the resident memory in MB; 0 for an ended process."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"VmRSS:"):
            return int(line.split()[1]) // 1024
    return 0


def processes_of(home: Path) -> list[int]:
    """Return the pids of the cluster in ``home``: daemons, tools, containers and their children."""
    daemons = _marker(home, "").encode()
    return [
        pid
        for pid in _all_pids()
        if any(argument.startswith(daemons) for argument in _read(pid, "cmdline").split(b"\0"))
        or _in_container(pid, home, r"nm\d+")
    ]


def with_argument(argument: bytes) -> list[int]:
    """Return the pids of all processes that have this argument on their command line."""
    return [pid for pid in _all_pids() if argument in command_of(pid)[1:]]


def containers_of(home: Path, name: str) -> list[int]:
    """Return the pids of all processes in a NodeManager's containers, which outlive a killed NodeManager.

    They are found by the working folder and by the environment that YARN gives a container, which a process keeps
    when it changes its session or folder.
    """
    return [pid for pid in _all_pids() if _in_container(pid, home, name)]


def send(pid: int, signal_number: int) -> None:
    """Send a signal to a process; do nothing if it has ended."""
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        pass


def kill_all(find: Callable[[], list[int]], timeout_s: float = 10) -> None:
    """Send SIGKILL to the processes that ``find`` returns, until it returns none, as processes may still fork."""
    deadline = time.monotonic() + timeout_s
    while left := find():
        for pid in left:
            send(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise HadoopError(f"processes {left} did not end within {timeout_s} s of SIGKILL")
        time.sleep(0.02)


def wait_until(what: str, check: Callable[[], bool], timeout_s: float) -> None:
    """Call ``check`` until it returns True, also while the daemon does not answer yet.

    Raises DaemonEnded at once if ``check`` does, HadoopError after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    reason = "the answer was no"
    while time.monotonic() < deadline:
        try:
            if check():
                return
            reason = "the answer was no"
        except DaemonEnded:
            raise
        except (OSError, LookupError, ValueError, HadoopError) as error:
            reason = f"{type(error).__name__}: {error}"  # not listening yet, or its metrics are not registered yet
        time.sleep(0.05)
    raise HadoopError(f"{what}: not within {timeout_s} s ({reason})")


def log_tail(home: Path, name: str, lines: int = 15) -> str:
    """Return the last lines of a daemon's log."""
    log = home / name / "log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


def _marker(home: Path, name: str) -> str:
    return f"-Dhopsml.hadoop.daemon={home}/{name}"


def _in_container(pid: int, home: Path, node: str) -> bool:
    folder = re.compile(f"{re.escape(str(home))}/{node}/local/")
    try:
        if folder.match(os.readlink(f"/proc/{pid}/cwd")):
            return True
    except OSError:
        pass
    found = re.search(rb"(?:^|\0)LOCAL_DIRS=([^\0]*)", _read(pid, "environ"))
    return bool(found and folder.match(os.fsdecode(found[1])))


def _process_state(pid: int) -> str:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


def _all_pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _read(pid: int, file: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{file}", "rb") as handle:
            return handle.read()
    except OSError:  # it has ended, or belongs to another user
        return b""
