"""Readiness checks of daemons, which are stricter than an open port."""

from __future__ import annotations

import json
import time
from typing import Any

from tools.hadoop.rest import ResourceManager, Web
from tools.hadoop.settings import LOOPBACK, Ports, host


def _jmx(web: Web, ports: Ports, name: str, service: str, which: str) -> dict[str, Any]:
    return web.bean(f"http://{web.host}:{ports[name]['http']}", service, which)


def in_safe_mode(web: Web, ports: Ports) -> bool:
    """Return True if the NameNode is in safe mode; LookupError or OSError while it does not answer."""
    return bool(_jmx(web, ports, "nn", "NameNode", "NameNodeInfo")["Safemode"])


def datanode_ready(web: Web, ports: Ports, name: str) -> bool:
    """Return True if a DataNode is registered with the running NameNode, which has received its block report.

    Before that the NameNode leaves safe mode and lists the node as live, but places no block on it.
    """
    info = _jmx(web, ports, "nn", "NameNode", "NameNodeInfo")
    address = f"{LOOPBACK}:{ports[name]['data']}"
    live = [node for node in json.loads(info["LiveNodes"]).values() if node["xferaddr"] == address]
    (actor,) = json.loads(_jmx(web, ports, name, "DataNode", "DataNodeInfo")["BPServiceActorInfo"])
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
