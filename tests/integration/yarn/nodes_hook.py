"""Executable of the service's autoscaler: nodes are further NodeManagers of a cluster on this machine.

python nodes_hook.py HOME list|launch|drain|recall|terminate
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.hadoop.cluster import Cluster
from tools.hadoop.settings import host

PATIENCE_S = 3600  # of YARN, with what runs on a node that is drained


def main() -> int:
    home, verb = Path(sys.argv[1]), sys.argv[2]
    request, cluster = json.load(sys.stdin), Cluster(home)
    match verb:
        case "list":
            added = [name for name in cluster.names("nm") if int(name[2:]) > cluster.state.shape.nodemanagers]
            print(json.dumps({"nodes": [listed(cluster, name) for name in added]}))
        case "launch":
            for _ in range(request["count"]):
                cluster.add_nodemanager(wait=False)
        case "drain":
            cluster.decommission(request["id"], PATIENCE_S)
        case "recall":
            cluster.recommission(request["id"])
        case "terminate":
            cluster.remove_nodemanager(request["id"])
            cluster.recommission(request["id"])  # the next node may have its address
    with open(home / "calls", "a") as calls:
        calls.write("" if verb == "list" else f"{verb} {json.dumps(request, sort_keys=True)}\n")
    return 0


def listed(cluster: Cluster, name: str) -> dict[str, object]:
    """``launched_s``: its settings are written just before it is started."""
    conf, excluded = cluster.home / name / "conf" / "yarn-site.xml", (cluster.home / "exclude").read_text().split()
    return {
        "id": name,
        "group": "small",
        "hosts": [host(name)],
        "launched_s": conf.stat().st_mtime,
        "state": "draining" if host(name) in excluded else "up",
    }


if __name__ == "__main__":
    sys.exit(main())
