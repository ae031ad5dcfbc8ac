"""Hadoop cluster in one folder, with its operations.

    cluster = Cluster(home)
    cluster.start(ensure_jars(), Shape(nodemanagers=2, gpus=2), guarded=True)
    cluster.kill("dn1"); cluster.revive("dn1"); cluster.add_nodemanager()
    cluster.stop(remove=True)

``state.json`` in the folder contains ports and pids, so that another process can use the same cluster.
Daemons are called nn (or nn1, nn2, jn1 ..., zk1, fc1, fc2), dn1, dn2 ..., rm (and rm2), nm1, nm2 ...
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.guard import Guard, guard_for
from tools.hadoop import daemons, ha, readiness, tls
from tools.hadoop.errors import DaemonEnded, HadoopError
from tools.hadoop.ha import with_two_namenodes
from tools.hadoop.jars import CACHE, exclusive
from tools.hadoop.kdc import HOST, Kdc
from tools.hadoop.kerberos import ADMIN, USERS, Security, principals, secured, web_hosts
from tools.hadoop.krb5 import ensure_krb5
from tools.hadoop.ports import free_ports
from tools.hadoop.rest import ApplicationState, ResourceManager, Web
from tools.hadoop.settings import PORTS_OF, Settings, Shape, host, kind, write_conf
from tools.hadoop.shuffle_service import compile_service, with_shuffle_service
from tools.hadoop.state import State

DEFAULT_HOME = CACHE / "run"
DEFAULT_SHAPE = Shape()
READY_TIMEOUT_S = 90.0  # on two busy cores a start takes 10 to 25 s
TOOL_TIMEOUT_S = 60.0


class Cluster:
    """Hadoop cluster with its files in ``home``; it need not run yet."""

    def __init__(self, home: Path = DEFAULT_HOME) -> None:
        self.home = Path(home).absolute()
        self._file = self.home / "state.json"
        self._state = State.read(self._file)
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # daemons that this process launched
        self._guard: Guard | None = None
        self.kdc = Kdc(self.home / "kdc")  # exists in a Kerberized cluster

    # ------------------------------------------------------------------ properties

    @property
    def state(self) -> State:
        """Ports, pids and shape; HadoopError if no cluster runs in the folder."""
        if self._state is None:
            raise HadoopError(f"no cluster in {self.home}; start one first (make hadoop-up)")
        return self._state

    @property
    def started(self) -> bool:
        """True if the folder contains a cluster that was started and not stopped."""
        return self._state is not None

    @property
    def conf_dir(self) -> Path:
        """Folder for HADOOP_CONF_DIR of a client."""
        return self.home / "client" / "conf"

    @property
    def tls_folder(self) -> Path:
        """Folder with key and certificate of a cluster with HTTPS."""
        return self.home / "tls"

    @property
    def namenode_url(self) -> str:
        """URL of HDFS: ``hdfs://HOST:PORT``, or that of the name service."""
        return f"hdfs://{ha.SERVICE if ha.is_ha(self.state.ports) else self._namenode_at('rpc')}"

    @property
    def webhdfs_url(self) -> str:
        """URL of WebHDFS: ``webhdfs://HOST:PORT``, or that of the name service; with HTTPS ``swebhdfs://``."""
        scheme = "swebhdfs" if self.web.certificate else "webhdfs"
        return f"{scheme}://{ha.SERVICE if ha.is_ha(self.state.ports) else self._namenode_at('http')}"

    def _namenode_at(self, purpose: str) -> str:
        return f"{self.web.host}:{self.state.ports['nn'][purpose]}"

    @property
    def resource_manager(self) -> ResourceManager:
        """REST API of the ResourceManager; of two that of the active one, of none active that of the first living one."""
        names = list(filter(self.alive, self.names("rm"))) or self.names("rm")
        managers = [ResourceManager(self.web.url(self.state.ports[name]["http"]), self.web) for name in names]
        return managers[0] if len(managers) == 1 else next(filter(_is_active, managers), managers[0])

    @property
    def active_namenode(self) -> str:
        """Name of the active NameNode; LookupError while there is none."""
        return readiness.active_namenode(self.web, self.state.ports)

    @property
    def web(self) -> Web:
        """HTTP client for the daemons, with the administrator's ticket in a Kerberized cluster."""
        security = self.state.security
        if security is None:
            return Web()
        certificate = tls.certificate(self.tls_folder) if security.https else None
        return Web(HOST, self.kdc.environment(ADMIN), certificate)

    def names(self, of_kind: str = "") -> list[str]:
        """Return the names of the daemons, alive or not; only those of a kind (``dn``, ``nm`` ...) if given."""
        return sorted(name for name in self.state.ports if name.startswith(of_kind))

    def alive(self, name: str) -> bool:
        """Return True if the daemon's process exists; a frozen one does."""
        if child := self._children.get(name):
            return child.poll() is None
        return daemons.running(self.home, name, self.state.pids.get(name, 0))

    def frozen(self, name: str) -> bool:
        """Return True if the daemon was stopped by SIGSTOP."""
        return self.alive(name) and daemons.frozen(self.state.pids[name])

    # ------------------------------------------------------------------ start and stop

    def start(
        self, jars: Path, shape: Shape = DEFAULT_SHAPE, *, guarded: bool = False, security: Security | None = None
    ) -> None:
        """Format a new HDFS, start every daemon and wait until all of them are ready.

        Args:
            jars: folder of Hadoop's jars.
            shape: size of the cluster.
            guarded: True to end the whole cluster and delete its folder when this process ends, even by kill -9.
            security: options of a Kerberized cluster, whose KDC is ``kdc``; None for one without security.

        Raises:
            HadoopError: a cluster runs in the folder already, or a daemon did not start; then none is left running.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        with exclusive(self.home / "lock"):
            self._refuse_second_start()
            self._state = State(str(jars.absolute()), shape, security=security)
            if guarded:
                self._guard = guard_for([*_command(self.home), "stop", "--now", "--remove"])
            try:
                self._bring_up()
            except BaseException:
                self.stop(now=True)
                raise

    def _refuse_second_start(self) -> None:
        self._state = State.read(self._file)
        if self._state and any(map(self.alive, self.names())):
            raise HadoopError(f"a cluster runs in {self.home} already; stop it first (make hadoop-down)")
        for stale in ("nn", "rm", *(f"{path.name}" for path in self.home.glob("[dnrjzf][nmkc][0-9]*"))):
            shutil.rmtree(self.home / stale, ignore_errors=True)  # left by a cluster that a reboot ended

    def _bring_up(self) -> None:
        shape = self.state.shape
        data = [f"dn{i + 1}" for i in range(shape.datanodes)]
        work = [f"nm{i + 1}" for i in range(shape.nodemanagers)]
        managers = ["rm", "rm2"][: shape.resourcemanagers]
        storage = ha.daemons_of_ha() if shape.namenodes > 1 else ("nn",)
        for name in (*storage, *managers, *data, *work):
            self._reserve_ports(name)
        (self.home / "exclude").write_text("")
        if shape.shuffle_port:
            compile_service(self.home, self.state.jars)
        if self.state.security:
            self.kdc.create(principals(self.state.ports), ensure_krb5(), ticket_s=self.state.security.ticket_s)
            self.kdc.kinit(ADMIN)
            if self.state.security.https:
                tls.create(self.tls_folder, web_hosts(self.state.ports))
        self._write_conf("client")
        for name in managers:  # in parallel with the format, which takes 3 s
            self._launch(name)
        if shape.namenodes > 1:
            self._start_namenodes()
        else:
            self._prepare("nn", "nn", "-format", "-nonInteractive", "-force")
            self._launch("nn")
        for name in (*data, *work):
            self._launch(name)
        if len(managers) > 1:
            self.fail_over("rm")
        self.wait_ready()
        if self.state.security:
            self._make_home_folders()

    def _make_home_folders(self) -> None:
        """Create a folder in HDFS and a ticket cache for each user; only the superuser may create folders in ``/``."""
        for user in USERS:
            self.kdc.kinit(user)
        homes = [f"/user/{user}" for user in USERS]
        self.fs("-mkdir", "-p", *homes, "/tmp", "/app-logs")
        self.fs("-chmod", "1777", "/tmp", "/app-logs")
        for user in USERS:
            self.fs("-chown", user, f"/user/{user}")

    def _start_namenodes(self) -> None:
        """Format and start two NameNodes, and the daemons that decide which one is active."""
        first, second = ha.NAMENODES
        for name in (ha.ZOOKEEPER, *ha.JOURNALNODES):
            self._launch(name)
        for name in (ha.ZOOKEEPER, *ha.JOURNALNODES):
            self._wait_for(name)
        self._prepare(first, "nn", "-format", "-nonInteractive", "-force")
        self._launch(first)
        self._prepare(ha.CONTROLLERS[0], "fc", "-formatZK", "-force", "-nonInteractive")
        self._launch(ha.CONTROLLERS[0])
        self._wait_for(first)
        self._prepare(second, "nn", "-bootstrapStandby", "-nonInteractive", "-force")
        for name in (second, ha.CONTROLLERS[1]):
            self._launch(name)

    def _prepare(self, name: str, of_kind: str, *arguments: str) -> None:
        """Run a daemon's class with arguments that make it prepare its files and end."""
        self._write_conf(name)
        command = daemons.java_command(self.home, self.state.jars, name, daemons.MAIN_CLASS[of_kind], *arguments)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=daemons.clean_environment()
        )
        if done.returncode:
            raise HadoopError(f"{name} {arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")

    def stop(self, *, now: bool = False, remove: bool = False, timeout_s: float = 15) -> None:
        """End every daemon and every container; do nothing if no cluster runs.

        Args:
            now: True to use SIGKILL at once.
            remove: True to delete the folder, too.
            timeout_s: seconds for each group of daemons to end after SIGTERM.
        """
        if self._state and not now:
            for group in ("nm", "rm", "fc", "dn", "nn", "jn", "zk"):
                self._terminate(self.names(group), timeout_s)
        daemons.kill_all(lambda: daemons.processes_of(self.home))
        for child in self._children.values():
            child.wait()
        self._children.clear()
        self.kdc.destroy()
        self._file.unlink(missing_ok=True)
        self._state = None
        if remove:
            shutil.rmtree(self.home, ignore_errors=True)
        if self._guard:
            self._guard.dismiss()
            self._guard = None

    def _terminate(self, names: Sequence[str], timeout_s: float) -> None:
        for name in names:
            self.send(name, signal.SIGTERM)
            self.send(name, signal.SIGCONT)
        deadline = time.monotonic() + timeout_s
        while any(map(self.alive, names)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for name in names:
            self.send(name, signal.SIGKILL)

    # ------------------------------------------------------------------ single daemons

    def send(self, name: str, signal_number: int) -> None:
        """Send a signal to a daemon; do nothing if it has ended."""
        if self.alive(name):
            daemons.send(self.state.pids[name], signal_number)

    def kill(self, name: str, signal_number: int = signal.SIGKILL, containers: bool = False) -> None:
        """Send a signal to a daemon, and wait until it has ended (SIGKILL) or is frozen (SIGSTOP).

        Args:
            name: the daemon's name.
            signal_number: the signal.
            containers: True to kill the containers of a NodeManager too, as in a power failure; by default they continue.
        """
        self._known(name)
        self.send(name, signal_number)
        if signal_number == signal.SIGKILL:
            daemons.wait_until(f"end of {name}", lambda: not self.alive(name), 10)
        elif signal_number == signal.SIGSTOP and self.alive(name):
            daemons.wait_until(f"standstill of {name}", lambda: self.frozen(name), 10)
        if containers:
            self._kill_containers(name)

    def revive(self, *names: str) -> None:
        """Restart killed and continue frozen daemons with the same ports and folders, and wait until they are ready."""
        since_ms = dict.fromkeys(names, 0.0)
        for name in names:
            self._known(name)
            if self.frozen(name):
                self.send(name, signal.SIGCONT)
            elif not self.alive(name):
                if kind(name) == "nm":
                    self._kill_containers(name)  # of the previous process
                since_ms[name] = time.time() * 1000
                self._launch(name)
        for name in sorted(names, key=_order):
            self._wait_for(name, since_ms[name])
        if {"nn", "rm"} & set(map(kind, names)):
            self.wait_ready(partly=True)  # the others must register with it again

    def fail_over(self, to: str) -> None:
        """Make one of two ResourceManagers active; the other one is dead, or on standby."""

        def done() -> bool:  # fails until it listens
            self.rmadmin("-transitionToActive", "--forceactive", to)  # the other one may be dead
            return True

        daemons.wait_until(f"{to} to be active", done, READY_TIMEOUT_S)

    def add_nodemanager(self, *, wait: bool = True) -> str:
        """Start one more NodeManager, and return its name once it is RUNNING, or at once without ``wait``."""
        name = f"nm{1 + max((int(known[2:]) for known in self.names('nm')), default=0)}"
        self._reserve_ports(name)
        since_ms = time.time() * 1000
        self._launch(name)
        if wait:
            self._wait_for(name, since_ms)
        return name

    def remove_nodemanager(self, name: str) -> None:
        """End a NodeManager and its containers gracefully, and remove it from the state."""
        self._known(name)
        self._terminate([name], 15)
        self._kill_containers(name)
        if child := self._children.pop(name, None):
            child.wait()
        self.state.pids.pop(name, None)
        del self.state.ports[name]
        self.state.write(self._file)

    def decommission(self, name: str, timeout_s: int = 60) -> None:
        """Decommission a NodeManager gracefully; return when the ResourceManager was notified.

        It gets no new containers, is DECOMMISSIONED when its applications have ended or after ``timeout_s``
        seconds, and then ends.
        """
        self._known(name)
        with (self.home / "exclude").open("a") as exclude:
            exclude.write(f"{host(name)}\n")
        self.rmadmin("-refreshNodes", "-g", str(timeout_s), "-server")

    def recommission(self, *names: str) -> None:
        """Recommission NodeManagers, all if none is named; one that has ended also needs ``revive``."""
        exclude = self.home / "exclude"
        kept = [each for each in exclude.read_text().split() if names and each not in map(host, names)]
        exclude.write_text("".join(f"{each}\n" for each in kept))
        self.rmadmin("-refreshNodes")

    def wait_no_containers(self, name: str, timeout_s: float = 30) -> None:
        """Wait until all processes in a NodeManager's containers have ended."""
        what = f"the end of all containers of {name}"
        daemons.wait_until(what, lambda: not daemons.containers_of(self.home, name), timeout_s)

    def _kill_containers(self, name: str) -> None:
        daemons.kill_all(lambda: daemons.containers_of(self.home, name))

    def _known(self, name: str) -> None:
        if name not in self.state.ports:
            raise HadoopError(f"no daemon is called {name!r}; there are {', '.join(self.names())}")

    def _reserve_ports(self, name: str) -> None:
        taken = {port for own in self.state.ports.values() for port in own.values()} | {self.state.shape.shuffle_port}
        purposes = PORTS_OF[kind(name)]
        self.state.ports[name] = dict(zip(purposes, free_ports(len(purposes), host(name), taken), strict=True))

    def _write_conf(self, name: str) -> None:
        def change(plain: Settings) -> Settings:
            ports, security, shuffle_port = self.state.ports, self.state.security, self.state.shape.shuffle_port
            changed = with_two_namenodes(plain, self.home, name, ports) if ha.is_ha(ports) else plain
            changed = with_shuffle_service(changed, self.home, shuffle_port) if shuffle_port else changed
            if security and security.https:
                changed = tls.with_https(changed, self.tls_folder, name)
            return secured(changed, self.kdc.folder, security) if security else changed

        write_conf(self.home, name, self.state.ports, self.state.shape, change)

    def _launch(self, name: str) -> None:
        self._write_conf(name)
        arguments = ha.arguments_of(self.home, name, self.state.ports)
        process = daemons.launch(self.home, self.state.jars, name, arguments)
        self._children[name] = process
        self.state.pids[name] = process.pid
        self.state.write(self._file)

    # ------------------------------------------------------------------ readiness

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S, *, partly: bool = False) -> None:
        """Wait until HDFS is out of safe mode and every DataNode and NodeManager is in service.

        Args:
            timeout_s: seconds for each daemon.
            partly: True to leave out daemons that have ended.

        Raises:
            DaemonEnded: a daemon has ended.
            HadoopError: a daemon is not ready in time.
        """
        for name in sorted(self.names(), key=_order):
            if not partly or self.alive(name):
                self._wait_for(name, timeout_s=timeout_s)

    def _wait_for(self, name: str, since_ms: float = 0, timeout_s: float = READY_TIMEOUT_S) -> None:
        ready: Callable[[], bool] = {
            "nn": lambda: readiness.namenode_ready(self.web, self.state.ports, name),
            "rm": lambda: self.resource_manager.nodes() is not None,
            "dn": lambda: readiness.datanode_ready(self.web, self.state.ports, name),
            "nm": lambda: readiness.nodemanager_ready(self.resource_manager, name, since_ms),
        }.get(kind(name), lambda: readiness.listens(self.state.ports, name))

        def check() -> bool:
            if not self.alive(name):
                raise DaemonEnded(f"{name} ended; {self.home / name / 'log'} says\n{daemons.log_tail(self.home, name)}")
            return ready()

        daemons.wait_until(f"{name} in {self.home} ready", check, timeout_s)

    # ------------------------------------------------------------------ administration and applications

    def dfsadmin(self, *arguments: str) -> str:
        """Run ``hdfs dfsadmin ARGUMENTS`` and return its output; HadoopError if it fails."""
        return self._tool("org.apache.hadoop.hdfs.tools.DFSAdmin", arguments)

    def rmadmin(self, *arguments: str) -> str:
        """Run ``yarn rmadmin ARGUMENTS`` and return its output; HadoopError if it fails."""
        return self._tool("org.apache.hadoop.yarn.client.cli.RMAdminCLI", arguments)

    def fs(self, *arguments: str) -> str:
        """Run ``hdfs dfs ARGUMENTS`` as the superuser and return its output; HadoopError if it fails."""
        return self._tool("org.apache.hadoop.fs.FsShell", arguments)

    def application_logs(self, app_id: str) -> str:
        """Return the aggregated logs of an ended application, by ``yarn logs -applicationId``.

        NodeManagers upload them after the application's end, so this waits for the state that the ResourceManager reports.
        """

        def uploaded() -> bool:
            status = self.resource_manager.application(app_id).get("logAggregationStatus", "")
            return status in ("SUCCEEDED", "FAILED", "TIME_OUT", "DISABLED")

        daemons.wait_until(f"logs of {app_id}", uploaded, TOOL_TIMEOUT_S)
        return self._tool("org.apache.hadoop.yarn.client.cli.LogsCLI", ("-applicationId", app_id))

    def _tool(self, main_class: str, arguments: Sequence[str]) -> str:
        ticket = self.kdc.environment(ADMIN) if self.state.security else {}
        return daemons.run_tool(self.home, self.state.jars, main_class, arguments, TOOL_TIMEOUT_S, ticket)

    def applications(self) -> list[dict[str, Any]]:
        """Return all applications that the ResourceManager lists, oldest first."""
        return self.resource_manager.applications()

    def application_state(self, app_id: str) -> ApplicationState:
        """Return the state of an application, from the ResourceManager's REST API."""
        return self.resource_manager.application_state(app_id)

    def kill_application(self, app_id: str) -> None:
        """Request the end of an application from the ResourceManager."""
        if self.state.security:
            self._tool("org.apache.hadoop.yarn.client.cli.ApplicationCLI", ("application", "-kill", app_id))
        else:
            self.resource_manager.kill_application(app_id)

    def wait_application(self, app_id: str, timeout_s: float = 120) -> ApplicationState:
        """Wait for the end of an application, and return its final state."""
        daemons.wait_until(f"end of {app_id}", lambda: self.application_state(app_id).over, timeout_s)
        return self.application_state(app_id)

    # ------------------------------------------------------------------ repair

    def make_whole(self) -> None:
        """Revert the changes of a test: end applications, remove added nodes, restart dead or frozen daemons.

        An intact cluster costs a check of each process and two requests.
        """
        broken = [name for name in self.names() if self.frozen(name)]
        for name in broken:
            self.send(name, signal.SIGCONT)
        if any(map(self.alive, self.names("nn"))) and readiness.in_safe_mode(self.web, self.state.ports):
            self.dfsadmin("-safemode", "leave")
        self._readmit_nodemanagers()
        broken += [name for name in self.names() if not self.alive(name)]
        if broken:
            self.revive(*broken)
            self.wait_ready()
        self._end_applications()

    def _readmit_nodemanagers(self) -> None:
        """Remove added NodeManagers, and recommission decommissioned ones after ending their processes."""
        for name in self.names("nm"):
            if int(name[2:]) > self.state.shape.nodemanagers:
                self.remove_nodemanager(name)
        exclude = self.home / "exclude"
        excluded = exclude.read_text().split()
        if excluded:
            exclude.write_text("")
            if self.alive("rm"):
                self.rmadmin("-refreshNodes")
            for name in self.names("nm"):
                if host(name) in excluded:
                    self.kill(name)

    def _end_applications(self) -> None:
        if not self.names("rm"):
            return
        going_on = [app["id"] for app in self.applications() if not self.application_state(app["id"]).over]
        for app_id in going_on:
            self.kill_application(app_id)
        for app_id in going_on:
            self.wait_application(app_id)
        if going_on:
            for name in self.names("nm"):
                self.wait_no_containers(name)


def _is_active(manager: ResourceManager) -> bool:
    try:
        return manager.is_active()
    except (OSError, LookupError, ValueError, HadoopError):
        return False


def _order(name: str) -> int:
    return ("zk", "jn", "fc", "nn", "rm", "dn", "nm").index(kind(name))


def _command(home: Path) -> list[str]:
    return [sys.executable, "-m", "tools.hadoop", "--home", os.fspath(home)]
