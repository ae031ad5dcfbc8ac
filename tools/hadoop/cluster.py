"""One Hadoop cluster in one folder: its verbs.

    cluster = Cluster(home)
    cluster.start(ensure_jars(), Shape(nodemanagers=2, gpus=2), guarded=True)
    cluster.kill("dn1"); cluster.revive("dn1"); cluster.add_nodemanager()
    cluster.stop(remove=True)

``state.json`` in the folder holds ports and pids, so that another process can go on with the same cluster.
Daemons are called nn, dn1, dn2 ..., rm (and rm2), nm1, nm2 ...
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
from tools.hadoop import daemons, readiness
from tools.hadoop.errors import DaemonEnded, HadoopError
from tools.hadoop.jars import CACHE, exclusive
from tools.hadoop.ports import free_ports
from tools.hadoop.rest import ApplicationState, ResourceManager
from tools.hadoop.settings import LOOPBACK, PORTS_OF, Shape, host, kind, write_conf
from tools.hadoop.state import State

DEFAULT_HOME = CACHE / "run"
DEFAULT_SHAPE = Shape()
READY_TIMEOUT_S = 90.0  # on two busy cores a start takes 10 to 25 s
TOOL_TIMEOUT_S = 60.0


class Cluster:
    """The cluster whose files are in ``home``; it need not run yet."""

    def __init__(self, home: Path = DEFAULT_HOME) -> None:
        self.home = Path(home).absolute()
        self._file = self.home / "state.json"
        self._state = State.read(self._file)
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # daemons that this very process launched
        self._guard: Guard | None = None

    # ------------------------------------------------------------------ what it is

    @property
    def state(self) -> State:
        """Ports, pids and shape; HadoopError when no cluster runs here."""
        if self._state is None:
            raise HadoopError(f"no cluster in {self.home}; start one first (make hadoop-up)")
        return self._state

    @property
    def started(self) -> bool:
        """Whether the folder holds a cluster that was started and not stopped."""
        return self._state is not None

    @property
    def conf_dir(self) -> Path:
        """What a client's HADOOP_CONF_DIR must be."""
        return self.home / "client" / "conf"

    @property
    def namenode_url(self) -> str:
        """``hdfs://HOST:PORT``."""
        return f"hdfs://{LOOPBACK}:{self.state.ports['nn']['rpc']}"

    @property
    def webhdfs_url(self) -> str:
        """``webhdfs://HOST:PORT``."""
        return f"webhdfs://{LOOPBACK}:{self.state.ports['nn']['http']}"

    @property
    def resource_manager(self) -> ResourceManager:
        """The REST API of the ResourceManager, the first that lives where there are two: it redirects to the active one."""
        managers = self.names("rm")
        name = next(filter(self.alive, managers), managers[0])
        return ResourceManager(f"http://{LOOPBACK}:{self.state.ports[name]['http']}")

    def names(self, of_kind: str = "") -> list[str]:
        """Names of the daemons, alive or not; of one kind where given (``dn``, ``nm`` ...)."""
        return sorted(name for name in self.state.ports if name.startswith(of_kind))

    def alive(self, name: str) -> bool:
        """Whether the daemon's process runs; a frozen one does."""
        if child := self._children.get(name):
            return child.poll() is None
        return daemons.running(self.home, name, self.state.pids.get(name, 0))

    def frozen(self, name: str) -> bool:
        """Whether the daemon was stopped by SIGSTOP."""
        return self.alive(name) and daemons.frozen(self.state.pids[name])

    # ------------------------------------------------------------------ start and stop

    def start(self, jars: Path, shape: Shape = DEFAULT_SHAPE, *, guarded: bool = False) -> None:
        """Format a new HDFS, start every daemon and wait until all of them are ready.

        ``guarded``: the whole cluster, its folder included, goes when this process ends, even by kill -9.

        Raises HadoopError when one runs here already, or when a daemon does not come up; then nothing is
        left running.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        with exclusive(self.home / "lock"):
            self._refuse_second_start()
            self._state = State(str(jars.absolute()), shape)
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
        for stale in ("nn", "rm", *(f"{path.name}" for path in self.home.glob("[dnr][nm][0-9]*"))):
            shutil.rmtree(self.home / stale, ignore_errors=True)  # of a cluster that a reboot ended

    def _bring_up(self) -> None:
        shape = self.state.shape
        data = [f"dn{i + 1}" for i in range(shape.datanodes)]
        work = [f"nm{i + 1}" for i in range(shape.nodemanagers)]
        managers = ["rm", "rm2"][: shape.resourcemanagers]
        for name in ("nn", *managers, *data, *work):
            self._reserve_ports(name)
        (self.home / "exclude").write_text("")
        for name in ("client", "nn"):
            self._write_conf(name)
        for name in managers:  # beside the format, which takes 3 s of its own
            self._launch(name)
        self._format()
        for name in ("nn", *data, *work):
            self._launch(name)
        if len(managers) > 1:
            self.fail_over("rm")
        self.wait_ready()

    def _format(self) -> None:
        arguments = ("-format", "-nonInteractive", "-force")
        command = daemons.java_command(self.home, self.state.jars, "nn", daemons.MAIN_CLASS["nn"], *arguments)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=daemons.clean_environment()
        )
        if done.returncode:
            raise HadoopError(f"the NameNode could not be formatted: {done.stderr[-2000:]}")

    def stop(self, *, now: bool = False, remove: bool = False, timeout_s: float = 15) -> None:
        """End every daemon and every container; nothing happens when no cluster runs.

        ``now`` uses SIGKILL at once; otherwise a daemon has ``timeout_s`` seconds for its own end.
        ``remove`` deletes the folder too.
        """
        if self._state and not now:
            for group in ("nm", "rm", "dn", "nn"):
                self._terminate(self.names(group), timeout_s)
        daemons.kill_all(lambda: daemons.processes_of(self.home))
        for child in self._children.values():
            child.wait()
        self._children.clear()
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
        """Send a signal to a daemon; nothing happens when it is dead."""
        if self.alive(name):
            daemons.send(self.state.pids[name], signal_number)

    def kill(self, name: str, signal_number: int = signal.SIGKILL, containers: bool = False) -> None:
        """Signal a daemon, as trouble would; when this returns it is gone (SIGKILL) or frozen (SIGSTOP).

        ``containers``: the containers of a NodeManager go too, as in a power cut; otherwise they live on.
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
        """Bring killed or frozen daemons back, at the same ports with the same folders, and wait for them."""
        since_ms = dict.fromkeys(names, 0.0)
        for name in names:
            self._known(name)
            if self.frozen(name):
                self.send(name, signal.SIGCONT)
            elif not self.alive(name):
                if kind(name) == "nm":
                    self._kill_containers(name)  # of the life before
                since_ms[name] = time.time() * 1000
                self._launch(name)
        for name in sorted(names, key=_order):
            self._wait_for(name, since_ms[name])
        if {"nn", "rm"} & set(names):
            self.wait_ready(partly=True)  # the others have to register with it again

    def fail_over(self, to: str) -> None:
        """Make a ResourceManager of two the active one; the other one is dead, or on standby."""

        def done() -> bool:  # not before it listens
            self.rmadmin("-transitionToActive", "--forceactive", to)  # the other one is not asked, which may be dead
            return True

        daemons.wait_until(f"{to} to be active", done, READY_TIMEOUT_S)

    def add_nodemanager(self, *, wait: bool = True) -> str:
        """Start one more NodeManager; returns its name once it is RUNNING, or at once."""
        name = f"nm{1 + max((int(known[2:]) for known in self.names('nm')), default=0)}"
        self._reserve_ports(name)
        since_ms = time.time() * 1000
        self._launch(name)
        if wait:
            self._wait_for(name, since_ms)
        return name

    def remove_nodemanager(self, name: str) -> None:
        """End a NodeManager and its containers in order, and forget it."""
        self._known(name)
        self._terminate([name], 15)
        self._kill_containers(name)
        if child := self._children.pop(name, None):
            child.wait()
        self.state.pids.pop(name, None)
        del self.state.ports[name]
        self.state.write(self._file)

    def decommission(self, name: str, timeout_s: int = 60) -> None:
        """Take a NodeManager out of service gracefully; returns when the ResourceManager has been told.

        It gets no new containers, is DECOMMISSIONED when its applications are over or after ``timeout_s``
        seconds, and then ends by itself.
        """
        self._known(name)
        with (self.home / "exclude").open("a") as exclude:
            exclude.write(f"{host(name)}\n")
        self.rmadmin("-refreshNodes", "-g", str(timeout_s), "-server")

    def recommission(self, *names: str) -> None:
        """Let decommissioned NodeManagers back in, all where none is named; one that has ended needs ``revive`` as well."""
        exclude = self.home / "exclude"
        kept = [each for each in exclude.read_text().split() if names and each not in map(host, names)]
        exclude.write_text("".join(f"{each}\n" for each in kept))
        self.rmadmin("-refreshNodes")

    def wait_no_containers(self, name: str, timeout_s: float = 30) -> None:
        """Wait until nothing runs in a NodeManager's containers."""
        what = f"the end of all containers of {name}"
        daemons.wait_until(what, lambda: not daemons.containers_of(self.home, name), timeout_s)

    def _kill_containers(self, name: str) -> None:
        daemons.kill_all(lambda: daemons.containers_of(self.home, name))

    def _known(self, name: str) -> None:
        if name not in self.state.ports:
            raise HadoopError(f"no daemon is called {name!r}; there are {', '.join(self.names())}")

    def _reserve_ports(self, name: str) -> None:
        taken = {port for own in self.state.ports.values() for port in own.values()}
        purposes = PORTS_OF[kind(name)]
        self.state.ports[name] = dict(zip(purposes, free_ports(len(purposes), host(name), taken), strict=True))

    def _write_conf(self, name: str) -> None:
        write_conf(self.home, name, self.state.ports, self.state.shape)

    def _launch(self, name: str) -> None:
        self._write_conf(name)
        process = daemons.launch(self.home, self.state.jars, name)
        self._children[name] = process
        self.state.pids[name] = process.pid
        self.state.write(self._file)

    # ------------------------------------------------------------------ readiness

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S, *, partly: bool = False) -> None:
        """Wait until HDFS is out of safe mode and every DataNode and NodeManager is in service.

        ``partly`` leaves out daemons that are dead. Raises DaemonEnded when one ends, HadoopError when time
        is over.
        """
        for name in sorted(self.names(), key=_order):
            if not partly or self.alive(name):
                self._wait_for(name, timeout_s=timeout_s)

    def _wait_for(self, name: str, since_ms: float = 0, timeout_s: float = READY_TIMEOUT_S) -> None:
        ready: Callable[[], bool] = {
            "nn": lambda: not readiness.in_safe_mode(self.state.ports),
            "rm": lambda: self.resource_manager.nodes() is not None,
            "dn": lambda: readiness.datanode_ready(self.state.ports, name),
            "nm": lambda: readiness.nodemanager_ready(self.resource_manager, name, since_ms),
        }[kind(name)]

        def check() -> bool:
            if not self.alive(name):
                raise DaemonEnded(f"{name} ended; {self.home / name / 'log'} says\n{daemons.log_tail(self.home, name)}")
            return ready()

        daemons.wait_until(f"{name} in {self.home} ready", check, timeout_s)

    # ------------------------------------------------------------------ administration and applications

    def dfsadmin(self, *arguments: str) -> str:
        """``hdfs dfsadmin ARGUMENTS``: what it printed; HadoopError when it failed."""
        return self._tool("org.apache.hadoop.hdfs.tools.DFSAdmin", arguments)

    def rmadmin(self, *arguments: str) -> str:
        """``yarn rmadmin ARGUMENTS``."""
        return self._tool("org.apache.hadoop.yarn.client.cli.RMAdminCLI", arguments)

    def application_logs(self, app_id: str) -> str:
        """``yarn logs -applicationId``: the aggregated logs of an application that is over."""
        return self._tool("org.apache.hadoop.yarn.client.cli.LogsCLI", ("-applicationId", app_id))

    def _tool(self, main_class: str, arguments: Sequence[str]) -> str:
        return daemons.run_tool(self.home, self.state.jars, main_class, arguments, TOOL_TIMEOUT_S)

    def applications(self) -> list[dict[str, Any]]:
        """Every application that the ResourceManager remembers, oldest first."""
        return self.resource_manager.applications()

    def application_state(self, app_id: str) -> ApplicationState:
        """How an application stands, by the ResourceManager's REST API."""
        return self.resource_manager.application_state(app_id)

    def kill_application(self, app_id: str) -> None:
        """Ask the ResourceManager to end an application."""
        self.resource_manager.kill_application(app_id)

    def wait_application(self, app_id: str, timeout_s: float = 120) -> ApplicationState:
        """Wait for the end of an application; returns its final state."""
        daemons.wait_until(f"end of {app_id}", lambda: self.application_state(app_id).over, timeout_s)
        return self.application_state(app_id)

    # ------------------------------------------------------------------ after trouble

    def make_whole(self) -> None:
        """Undo what a test did: end applications, drop added nodes, revive what is dead or frozen.

        A cluster that is whole already costs a look at each process and two requests.
        """
        broken = [name for name in self.names() if self.frozen(name)]
        for name in broken:
            self.send(name, signal.SIGCONT)
        if self.alive("nn") and readiness.in_safe_mode(self.state.ports):
            self.dfsadmin("-safemode", "leave")
        self._readmit_nodemanagers()
        broken += [name for name in self.names() if not self.alive(name)]
        if broken:
            self.revive(*broken)
            self.wait_ready()
        self._end_applications()

    def _readmit_nodemanagers(self) -> None:
        """Drop those that were added; let in those that were decommissioned, which end by themselves."""
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
        going_on = [app["id"] for app in self.applications() if not self.application_state(app["id"]).over]
        for app_id in going_on:
            self.kill_application(app_id)
        for app_id in going_on:
            self.wait_application(app_id)
        if going_on:
            for name in self.names("nm"):
                self.wait_no_containers(name)


def _order(name: str) -> int:
    return ("nn", "rm", "dn", "nm").index(kind(name))


def _command(home: Path) -> list[str]:
    return [sys.executable, "-m", "tools.hadoop", "--home", os.fspath(home)]
