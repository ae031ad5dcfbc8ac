"""Settings of the daemons and their clients, as a pure function of folder, ports and the cluster's shape."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

LOOPBACK = "127.0.0.1"

Settings = dict[str, dict[str, object]]  # file name -> key -> value
Ports = Mapping[str, Mapping[str, int]]  # daemon -> purpose -> port

PORTS_OF = {
    "nn": ("rpc", "http"),
    "dn": ("data", "ipc", "http"),
    "rm": ("client", "scheduler", "tracker", "admin", "http"),
    "nm": ("ipc", "localizer", "collector", "http"),
    "jn": ("rpc", "http"),
    "zk": ("client",),
    "fc": ("rpc",),
}

LOG4J = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


@dataclass(frozen=True)
class Shape:
    """Size of a cluster; memory, cores and GPUs are those of each NodeManager."""

    namenodes: int = 1  # of two, nn1 and nn2, one is active; ZooKeeper selects it
    datanodes: int = 2  # with one, closing a file takes half a second
    nodemanagers: int = 2
    gpus: int = 2
    memory_mb: int = 8192
    vcores: int = 8
    node_expiry_ms: int = 5000  # a silent NodeManager is LOST after this long; Hadoop's own default is 10 minutes
    resourcemanagers: int = 1  # 0: HDFS alone; of two, rm and rm2, one is active; ``Cluster.fail_over`` selects it
    log_mb: int = 0  # a container that writes more than this into its logs is killed; 0: no limit, Hadoop's default
    shuffle_port: int = 0  # of Spark's external shuffle service at each NodeManager's address; 0: there is none

    def __post_init__(self) -> None:
        for name, least in (
            ("namenodes", 1),
            ("datanodes", 1),
            ("nodemanagers", 0),
            ("resourcemanagers", 0),
            ("gpus", 0),
            ("memory_mb", 64),
            ("vcores", 1),
            ("log_mb", 0),
            ("shuffle_port", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: it must be at least {least}")
        if self.namenodes > 2 or self.resourcemanagers > 2:
            raise ValueError("namenodes, resourcemanagers: there may be at most 2 of each")


def kind(name: str) -> str:
    """Return the kind ``nn``, ``dn``, ``rm``, ``nm``, ``jn``, ``zk`` or ``fc`` of a daemon's name such as ``dn1``."""
    return name[:2]


def first_namenode(ports: Ports) -> str:
    """Return the name of the only NameNode, or of the first of two."""
    return next(name for name in sorted(ports) if kind(name) == "nn")


def host(name: str) -> str:
    """Return the address to which a daemon binds.

    Each NodeManager has a separate loopback address (nm1 is 127.0.0.11): YARN names, counts and excludes
    nodes by host, and Spark's executors bind to the host of their node.
    """
    return f"127.0.0.{10 + int(name[2:])}" if kind(name) == "nm" else LOOPBACK


def user() -> str:
    """Return the user of the daemons, from the operating system as in Hadoop, not from the environment."""
    return pwd.getpwuid(os.getuid()).pw_name


def common_settings(home: Path, ports: Ports, shape: Shape) -> Settings:
    """Return the settings of all daemons and clients."""
    return {
        "core-site.xml": {
            "fs.defaultFS": f"hdfs://{LOOPBACK}:{ports[first_namenode(ports)]['rpc']}",
            "hadoop.tmp.dir": home / "tmp",
            f"hadoop.proxyuser.{user()}.hosts": "*",
            f"hadoop.proxyuser.{user()}.groups": "*",
        },
        "hdfs-site.xml": _hdfs(home, ports, shape),
        "yarn-site.xml": {**_resource_manager(home, ports, shape), **_node_managers(shape)},
        "resource-types.xml": {"yarn.resource-types": "yarn.io/gpu"},
        "node-resources.xml": {"yarn.nodemanager.resource-type.yarn.io/gpu": shape.gpus},
        "capacity-scheduler.xml": {
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": 100,
            "yarn.scheduler.capacity.maximum-am-resource-percent": 1.0,
            # the default calculator counts only memory, and assigns more GPUs than exist
            "yarn.scheduler.capacity.resource-calculator": (
                "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator"
            ),
        },
    }


def _hdfs(home: Path, ports: Ports, shape: Shape) -> dict[str, object]:
    return {
        "dfs.replication": min(2, shape.datanodes),
        "dfs.namenode.name.dir": f"file://{home}/nn/data",
        "dfs.namenode.http-address": f"{LOOPBACK}:{ports[first_namenode(ports)]['http']}",
        "dfs.namenode.safemode.extension": 0,
        "dfs.namenode.edits.noeditlogchannelflush": "true",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        # a dead DataNode is avoided after 5 s and given up after 2 x 2000 ms + 10 x 1 s, not 10.5 minutes
        "dfs.heartbeat.interval": 1,
        "dfs.namenode.heartbeat.recheck-interval": 2000,
        "dfs.namenode.stale.datanode.interval": 5000,
        "dfs.namenode.avoid.read.stale.datanode": "true",
        "dfs.namenode.avoid.write.stale.datanode": "true",
        "dfs.datanode.hostname": LOOPBACK,
        # of two DataNodes a dead one cannot be replaced
        "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
    }


def _resource_manager(home: Path, ports: Ports, shape: Shape) -> dict[str, object]:
    return {
        **_resource_managers_addresses(ports),
        "yarn.resourcemanager.nodes.exclude-path": home / "exclude",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 200,
        # the default is a folder in /tmp that all clusters of a user would share
        "yarn.node-attribute.fs-store.root-dir": f"file://{home}/rm/node-attribute",
        "yarn.nm.liveness-monitor.expiry-interval-ms": shape.node_expiry_ms,
        # a restarted ResourceManager knows its applications, and their containers continue
        "yarn.resourcemanager.recovery.enabled": "true",
        "yarn.resourcemanager.store.class": (
            "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
        ),
        "yarn.resourcemanager.fs.state-store.uri": f"file://{home}/rm/state",
        # time that it then waits for nodes to register before it assigns containers; by default 10 s
        "yarn.resourcemanager.work-preserving-recovery.scheduling-wait-ms": 2000,
        # interval in which nodes and applications retry a restarted ResourceManager; by default 30 s
        "yarn.resourcemanager.connect.retry-interval.ms": 500,
        # until an application's master registers, which unpacks a shipped environment before; by default 10 minutes
        "yarn.am.liveness-monitor.expiry-interval-ms": 180_000,
        "yarn.scheduler.minimum-allocation-mb": 64,
    }


def _resource_managers_addresses(ports: Ports) -> dict[str, object]:
    """Return the addresses of the only ResourceManager, or of each by name for clients that try them in order."""
    managers = sorted(name for name in ports if kind(name) == "rm")
    found: dict[str, object] = {}
    for name in managers:
        suffix = f".{name}" if len(managers) > 1 else ""
        found[f"yarn.resourcemanager.hostname{suffix}"] = LOOPBACK
        for setting, purpose in (
            ("address", "client"),
            ("scheduler.address", "scheduler"),
            ("resource-tracker.address", "tracker"),
            ("admin.address", "admin"),
            ("webapp.address", "http"),
        ):
            found[f"yarn.resourcemanager.{setting}{suffix}"] = f"{LOOPBACK}:{ports[name][purpose]}"
    if len(managers) > 1:
        found |= {
            "yarn.resourcemanager.ha.enabled": "true",
            "yarn.resourcemanager.ha.rm-ids": ",".join(managers),
            "yarn.resourcemanager.ha.automatic-failover.enabled": "false",  # it would require a ZooKeeper
            "yarn.resourcemanager.cluster-id": "hopsml",
            "yarn.client.failover-sleep-base-ms": 100,
            "yarn.client.failover-sleep-max-ms": 1000,
        }
    return found


def _node_managers(shape: Shape) -> dict[str, object]:
    return {
        "yarn.nodemanager.resource.memory-mb": shape.memory_mb,
        "yarn.nodemanager.resource.cpu-vcores": shape.vcores,
        "yarn.nodemanager.vmem-check-enabled": "false",  # TensorFlow maps far more than it uses
        "yarn.nodemanager.pmem-check-enabled": "false",
        # a disk that is nearly full would make every node UNHEALTHY
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": 500,
        "yarn.nodemanager.localizer.cache.target-size-mb": 2048,
        "yarn.log-aggregation-enable": "true",
        "yarn.nodemanager.remote-app-log-dir": "/app-logs",
        "yarn.nodemanager.container-log-monitor.enable": "true" if shape.log_mb else "false",
        "yarn.nodemanager.container-log-monitor.interval-ms": 1000,
        "yarn.nodemanager.container-log-monitor.dir-size-limit-bytes": shape.log_mb << 20,
    }


def daemon_settings(home: Path, name: str, ports: Ports, shape: Shape) -> Settings:
    """Return a daemon's settings in addition to the common ones; none for ``client``."""
    if kind(name) == "dn":
        own = ports[name]
        return {
            "hdfs-site.xml": {
                "dfs.datanode.data.dir": f"file://{home}/{name}/data",
                "dfs.datanode.address": f"{LOOPBACK}:{own['data']}",
                "dfs.datanode.ipc.address": f"{LOOPBACK}:{own['ipc']}",
                "dfs.datanode.http.address": f"{LOOPBACK}:{own['http']}",
            }
        }
    if kind(name) == "rm":
        return {"yarn-site.xml": {"yarn.resourcemanager.ha.id": name}}
    if kind(name) == "nm":
        own, at = ports[name], host(name)
        return {
            "yarn-site.xml": {
                "yarn.nodemanager.hostname": at,
                "yarn.nodemanager.address": f"{at}:{own['ipc']}",
                "yarn.nodemanager.localizer.address": f"{at}:{own['localizer']}",
                "yarn.nodemanager.collector-service.address": f"{at}:{own['collector']}",
                "yarn.nodemanager.webapp.address": f"{at}:{own['http']}",
                "yarn.nodemanager.local-dirs": home / name / "local",
                "yarn.nodemanager.log-dirs": home / name / "containers",
                # inherited by every container of the node; conf/discover_gpus.py reads them
                "yarn.nodemanager.admin-env": (
                    f"HOPSML_EMULATED_GPUS={shape.gpus},HOPSML_GPU_CLAIMS={home / name / 'gpu-claims'}"
                ),
            }
        }
    return {}


def write_conf(
    home: Path, name: str, ports: Ports, shape: Shape, change: Callable[[Settings], Settings] = lambda plain: plain
) -> Path:
    """Write the settings folder, the first on the class path of a daemon (or ``client``), and return it.

    ``change`` returns the settings to write for those of a cluster without security.
    """
    conf = home / name / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    own = daemon_settings(home, name, ports, shape)
    plain = {file: {**rows, **own.get(file, {})} for file, rows in common_settings(home, ports, shape).items()}
    for file, rows in change(plain).items():
        (conf / file).write_text(_xml(rows))
    (conf / "log4j.properties").write_text(LOG4J)
    # the jars lack these, and the daemons refuse to start without
    for page in ("hdfs", "datanode", "static", "journal", "secondary"):
        (conf / "webapps" / page).mkdir(parents=True, exist_ok=True)
    return conf


def _xml(settings: Mapping[str, object]) -> str:
    rows = "".join(
        f"<property><name>{escape(key)}</name><value>{escape(str(value))}</value></property>\n"
        for key, value in settings.items()
    )
    return f"<configuration>\n{rows}</configuration>\n"
