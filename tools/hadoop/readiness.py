"""Readiness checks of daemons, which are stricter than an open port."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from tools.hadoop.rest import ResourceManager, Web
from tools.hadoop.settings import LOOPBACK, Ports, host, kind


def _jmx(web: Web, ports: Ports, name: str, service: str, which: str) -> dict[str, Any]:
    return web.bean(web.url(ports[name]["http"]), service, which)


def role(web: Web, ports: Ports, name: str) -> str:
    """Return ``active`` or ``standby`` of a NameNode; LookupError or OSError while it does not answer."""
    return str(_jmx(web, ports, name, "NameNode", "NameNodeStatus")["State"])


def active_namenode(web: Web, ports: Ports) -> str:
    """Return the active NameNode, which of one is that one; LookupError or OSError while there is none."""
    names = sorted(name for name in ports if kind(name) == "nn")
    if len(names) == 1:
        return names[0]
    for name in names:
        try:
            if role(web, ports, name) == "active":
                return name
        except (OSError, LookupError):
            continue
    raise LookupError("no NameNode is active")


def in_safe_mode(web: Web, ports: Ports) -> bool:
    """Return True if the active NameNode is in safe mode; LookupError or OSError while it does not answer."""
    return bool(_jmx(web, ports, active_namenode(web, ports), "NameNode", "NameNodeInfo")["Safemode"])


def namenode_ready(web: Web, ports: Ports, name: str) -> bool:
    """Return True if a NameNode is out of safe mode or, of two, has the role of a standby."""
    if active_namenode(web, ports) == name:
        return not in_safe_mode(web, ports)
    return role(web, ports, name) == "standby"


def listens(ports: Ports, name: str) -> bool:
    """Return True if a daemon accepts connections at its first port."""
    with socket.create_connection((LOOPBACK, next(iter(ports[name].values()))), 1):
        return True


def datanode_ready(web: Web, ports: Ports, name: str) -> bool:
    """Return True if a DataNode is registered with the running NameNode, which has received its block report.

    Before that the NameNode leaves safe mode and lists the node as live, but places no block on it.
    """
    active = active_namenode(web, ports)
    info = _jmx(web, ports, active, "NameNode", "NameNodeInfo")
    address = f"{LOOPBACK}:{ports[name]['data']}"
    live = [node for node in json.loads(info["LiveNodes"]).values() if node["xferaddr"] == address]
    actors = json.loads(_jmx(web, ports, name, "DataNode", "DataNodeInfo")["BPServiceActorInfo"])
    (actor,) = [one for one in actors if one["NamenodeAddress"].endswith(f":{ports[active]['rpc']}")]
    report_age_s = int(actor["LastBlockReport"]) + 1  # reported in whole seconds
    return (
        actor["ActorState"] == "RUNNING"
        and report_age_s <= time.time() - info["NNStartedTimeInMillis"] / 1000
        and any(node["lastContact"] < 3 and node["capacity"] > 0 for node in live)
    )


def nodemanager_ready(resource_manager: ResourceManager, name: str, since_ms: float) -> bool:
    """Return True if a NodeManager is RUNNING, with a health check after ``since_ms``: a dead one is listed as RUNNING."""
    node = resource_manager.nodes().get(host(name))
    return bool(node and node["state"] == "RUNNING" and node["lastHealthUpdate"] >= since_ms)
