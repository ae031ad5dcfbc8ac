"""Command line of the local Hadoop cluster: python -m tools.hadoop start|stop|status|..."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from dataclasses import fields
from pathlib import Path

from tools.hadoop.cluster import DEFAULT_HOME, Cluster
from tools.hadoop.daemons import rss_mb
from tools.hadoop.errors import HadoopError
from tools.hadoop.jars import ensure_jars
from tools.hadoop.kerberos import PROTECTIONS, USERS, Security
from tools.hadoop.settings import Shape


def start(cluster: Cluster, args: argparse.Namespace) -> str:
    """Fetch the jars, start every daemon, wait until all are ready; return the addresses."""
    jars = Path(args.jars) if args.jars else ensure_jars()
    began = time.monotonic()
    cluster.start(jars, shape_of(args), security=security_of(args))
    return (
        f"ready after {time.monotonic() - began:.1f} s: {cluster.namenode_url} {cluster.webhdfs_url} "
        f"{cluster.resource_manager.base if cluster.names('rm') else ''}\n{exports(cluster)}"
    )


def exports(cluster: Cluster, user: str = USERS[0]) -> str:
    """Return the shell's export line for a client of the cluster, in a Kerberized one with the ticket of ``user``."""
    variables = {"HADOOP_CONF_DIR": str(cluster.conf_dir)}
    if cluster.state.security:
        ticket = cluster.kdc.environment(user)
        names = ("KRB5_CONFIG", "KRB5CCNAME", "LD_LIBRARY_PATH")
        variables |= {name: ticket[name] for name in names if name in ticket}
        variables["SPARK_SUBMIT_OPTS"] = f"-Djava.security.krb5.conf={cluster.kdc.config}"
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


def kinit(cluster: Cluster, args: argparse.Namespace) -> str:
    """Obtain a ticket for a user of a Kerberized cluster, and return the export line that selects it."""
    if not cluster.state.security:
        raise HadoopError("the cluster has no Kerberos; start it with --kerberos")
    cluster.kdc.kinit(args.user, life_s=args.life_s, renewable_s=args.renewable_s)
    return exports(cluster, args.user)


def kdestroy(cluster: Cluster, args: argparse.Namespace) -> str:
    """Delete a user's ticket."""
    cluster.kdc.kdestroy(args.user)
    return f"{args.user}: no ticket"


def stop(cluster: Cluster, args: argparse.Namespace) -> str:
    """End every daemon and container; return the duration as text."""
    began = time.monotonic()
    cluster.stop(now=args.now, remove=args.remove)
    return f"stopped after {time.monotonic() - began:.1f} s"


def status(cluster: Cluster, args: argparse.Namespace) -> str:
    """Return a line for each daemon, then the ResourceManager's nodes."""
    rows = []
    for name in cluster.names():
        how = "frozen" if cluster.frozen(name) else "alive" if cluster.alive(name) else "dead"
        pid, ports = cluster.state.pids.get(name, 0), cluster.state.ports[name]
        listed = " ".join(f"{purpose}={port}" for purpose, port in ports.items())
        rows.append(f"{name:5} {how:6} pid {pid:7} rss {rss_mb(pid) if how != 'dead' else 0:4} MB  {listed}")
    if cluster.alive("rm"):
        nodes = cluster.resource_manager.nodes()
        rows += [f"node {host} {node['state']}" for host, node in sorted(nodes.items())]
    rows.append(exports(cluster))
    return "\n".join(rows)


def applications(cluster: Cluster, args: argparse.Namespace) -> str:
    """Return a line for each application."""
    return "\n".join(f"{app['id']} {app['state']} {app['finalStatus']} {app['name']}" for app in cluster.applications())


def application(cluster: Cluster, args: argparse.Namespace) -> str:
    """Return the state or the logs of an application, or end it."""
    if args.what == "kill":
        cluster.kill_application(args.app_id)
        return cluster.wait_application(args.app_id).state
    if args.what == "logs":
        return cluster.application_logs(args.app_id)
    found = cluster.application_state(args.app_id)
    return f"{found.state} {found.final_status} {found.diagnostics}".strip()


def kill(cluster: Cluster, args: argparse.Namespace) -> str:
    """Send a signal to a daemon; HadoopError for an unknown signal."""
    number = getattr(signal, f"SIG{args.signal.upper().removeprefix('SIG')}", None)
    if number is None:
        raise HadoopError(f"--signal {args.signal}: no such signal; for instance KILL, STOP, CONT, TERM")
    cluster.kill(args.name, number, args.containers)
    return f"{args.name}: SIG{signal.Signals(number).name[3:]} sent"


def revive(cluster: Cluster, args: argparse.Namespace) -> str:
    """Restart or continue daemons, and wait until they are ready."""
    cluster.revive(*args.names)
    return f"{' '.join(args.names)}: ready"


def add_nodemanager(cluster: Cluster, args: argparse.Namespace) -> str:
    """Start one more NodeManager, and return its name."""
    return f"{cluster.add_nodemanager()}: running"


def decommission(cluster: Cluster, args: argparse.Namespace) -> str:
    """Decommission a NodeManager gracefully."""
    cluster.decommission(args.name, args.timeout_s)
    return f"{args.name}: no new containers; out of service after at most {args.timeout_s} s"


def dfsadmin(cluster: Cluster, args: argparse.Namespace) -> str:
    """Run `hdfs dfsadmin` and return its output."""
    return cluster.dfsadmin(*args.arguments).rstrip()


def rmadmin(cluster: Cluster, args: argparse.Namespace) -> str:
    """Run `yarn rmadmin` and return its output."""
    return cluster.rmadmin(*args.arguments).rstrip()


def parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs and their options."""
    top = argparse.ArgumentParser(prog="python -m tools.hadoop", description="A real HDFS and YARN on this machine.")
    top.add_argument("--home", type=Path, default=DEFAULT_HOME, help="the cluster's folder (default %(default)s)")
    verbs = top.add_subparsers(dest="verb", required=True)
    _start_options(verbs.add_parser("start", help="start a new cluster; it runs until `stop`"))
    ending = verbs.add_parser("stop", help="end it")
    ending.add_argument("--now", action="store_true", help="by SIGKILL")
    ending.add_argument("--remove", action="store_true", help="delete its folder as well")
    for name in ("status", "applications", "add-nodemanager"):
        verbs.add_parser(name)
    one = verbs.add_parser("application", help="state, kill or logs of one application")
    one.add_argument("what", choices=("state", "kill", "logs"))
    one.add_argument("app_id")
    killing = verbs.add_parser("kill", help="signal one daemon: nn (or nn1, nn2), dn1, rm, nm2 ...")
    killing.add_argument("name")
    killing.add_argument("--signal", default="KILL", help="KILL, STOP, CONT, TERM (default %(default)s)")
    killing.add_argument("--containers", action="store_true", help="the node's containers too, as in a power cut")
    verbs.add_parser("revive", help="bring daemons back").add_argument("names", nargs="+")
    leaving = verbs.add_parser("decommission", help="take a NodeManager out of service gracefully")
    leaving.add_argument("name")
    leaving.add_argument("--timeout-s", type=int, default=60)
    ticket = verbs.add_parser("kinit", help="a ticket for a user of a Kerberized cluster")
    ticket.add_argument("user", nargs="?", default=USERS[0])
    ticket.add_argument("--life-s", type=int, default=0, help="life of the ticket (default: that of the KDC)")
    ticket.add_argument("--renewable-s", type=int, default=0, help="time in which it can be renewed (default: none)")
    verbs.add_parser("kdestroy", help="delete a user's ticket").add_argument("user", nargs="?", default=USERS[0])
    for name in ("dfsadmin", "rmadmin"):
        # options of these tools begin with a dash, and must not be parsed here
        verbs.add_parser(name, prefix_chars="\0", add_help=False).add_argument("arguments", nargs="*")
    return top


def _start_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--jars", help="a folder of Hadoop jars (default: fetched by Maven into .cache)")
    for field in fields(Shape):
        of_each = "of every NodeManager; " if field.name in ("gpus", "memory_mb", "vcores") else ""
        option = f"--{field.name.replace('_', '-')}"
        options.add_argument(option, type=int, default=field.default, help=f"{of_each}default %(default)s")

    options.add_argument("--ha", dest="namenodes", action="store_const", const=2, help="--namenodes 2: a standby")
    secure = options.add_argument_group("Kerberos")
    secure.add_argument("--kerberos", action="store_true", help="a KDC in the cluster's folder; users alice and bob")
    secure.add_argument("--spnego", action="store_true", help="HTTP of ResourceManager and NodeManagers needs a ticket")
    secure.add_argument("--https", action="store_true", help="web services of all daemons use TLS only")
    secure.add_argument("--protection", choices=PROTECTIONS, default=Security.protection)
    secure.add_argument("--encrypt", action="store_true", help="dfs.encrypt.data.transfer")
    for name in ("token_renew_s", "token_max_s", "ticket_s"):
        default = getattr(Security, name)
        secure.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help="default %(default)s")


def security_of(args: argparse.Namespace) -> Security | None:
    """Return what the options of `start` under the heading Kerberos describe; None without --kerberos."""
    return Security(**{field.name: getattr(args, field.name) for field in fields(Security)}) if args.kerberos else None


def shape_of(args: argparse.Namespace) -> Shape:
    """Return the shape that the options of `start` describe: one option for each field of ``Shape``."""
    return Shape(**{field.name: getattr(args, field.name) for field in fields(Shape)})


VERBS = {
    "start": start, "stop": stop, "status": status, "applications": applications, "application": application,
    "kill": kill, "revive": revive, "add-nodemanager": add_nodemanager, "decommission": decommission,
    "dfsadmin": dfsadmin, "rmadmin": rmadmin, "kinit": kinit, "kdestroy": kdestroy,
}  # fmt: skip


def main() -> int:
    """Run the verb of the command line; errors of the cluster become one message and exit status 1."""
    args = parser().parse_args()
    try:
        said = VERBS[args.verb](Cluster(args.home), args)
    except (HadoopError, ValueError) as error:
        print(f"hadoop {args.verb}: {error}", file=sys.stderr)
        return 1
    print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
