"""Settings of an HDFS with two NameNodes, three JournalNodes and automatic failover by ZooKeeper; pure functions."""

from __future__ import annotations

from pathlib import Path

from tools.hadoop.settings import LOOPBACK, Ports, Settings, kind

SERVICE = "ns1"
NAMENODES = ("nn1", "nn2")
JOURNALNODES = ("jn1", "jn2", "jn3")
CONTROLLERS = ("fc1", "fc2")  # one beside each NameNode
ZOOKEEPER = "zk1"
_OF_ONE = ("dfs.namenode.http-address", "dfs.namenode.name.dir")  # they would override those of each NameNode


def is_ha(ports: Ports) -> bool:
    """Return True if the daemons are those of an HDFS with two NameNodes."""
    return NAMENODES[0] in ports


def daemons_of_ha() -> tuple[str, ...]:
    """Return the names of all daemons that an HDFS with two NameNodes has besides DataNodes."""
    return (ZOOKEEPER, *JOURNALNODES, *NAMENODES, *CONTROLLERS)


def with_two_namenodes(settings: Settings, home: Path, name: str, ports: Ports) -> Settings:
    """Return the settings of a daemon, or of ``client``, with the name service in the place of one NameNode."""
    changed = {file: dict(rows) for file, rows in settings.items()}
    changed["core-site.xml"] |= {
        "fs.defaultFS": f"hdfs://{SERVICE}",
        "ha.zookeeper.quorum": f"{LOOPBACK}:{ports[ZOOKEEPER]['client']}",
        "ha.zookeeper.session-timeout.ms": 5000,
    }
    hdfs = {key: value for key, value in changed["hdfs-site.xml"].items() if key not in _OF_ONE}
    journals = ";".join(f"{LOOPBACK}:{ports[journal]['rpc']}" for journal in JOURNALNODES)
    hdfs |= {
        "dfs.nameservices": SERVICE,
        f"dfs.ha.namenodes.{SERVICE}": ",".join(NAMENODES),
        f"dfs.client.failover.proxy.provider.{SERVICE}": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
        "dfs.namenode.shared.edits.dir": f"qjournal://{journals}/{SERVICE}",
        "dfs.ha.automatic-failover.enabled": "true",
        "dfs.ha.fencing.methods": "shell(/bin/true)",  # the JournalNodes fence the old active one by their epochs
        "dfs.ha.tail-edits.period": "1s",  # by default 60 s
        "dfs.ha.tail-edits.in-progress": "true",
    }
    for namenode, controller in zip(NAMENODES, CONTROLLERS, strict=True):
        hdfs[f"dfs.namenode.rpc-address.{SERVICE}.{namenode}"] = f"{LOOPBACK}:{ports[namenode]['rpc']}"
        hdfs[f"dfs.namenode.http-address.{SERVICE}.{namenode}"] = f"{LOOPBACK}:{ports[namenode]['http']}"
        hdfs[f"dfs.ha.zkfc.port.{SERVICE}.{namenode}"] = ports[controller]["rpc"]
    changed["hdfs-site.xml"] = hdfs | _own(home, name, ports)
    return changed


def arguments_of(home: Path, name: str, ports: Ports) -> list[str]:
    """Return the command-line arguments of a daemon: ZooKeeper's port, folder and length of a tick in milliseconds."""
    return [str(ports[name]["client"]), str(home / name / "data"), "500"] if kind(name) == "zk" else []


def _own(home: Path, name: str, ports: Ports) -> dict[str, object]:
    if kind(name) in ("nn", "fc"):
        namenode = NAMENODES[int(name[2:]) - 1]
        return {"dfs.ha.namenode.id": namenode, "dfs.namenode.name.dir": f"file://{home}/{namenode}/data"}
    if kind(name) == "jn":
        return {
            "dfs.journalnode.edits.dir": home / name / "data",
            "dfs.journalnode.rpc-address": f"{LOOPBACK}:{ports[name]['rpc']}",
            "dfs.journalnode.http-address": f"{LOOPBACK}:{ports[name]['http']}",
        }
    return {}
