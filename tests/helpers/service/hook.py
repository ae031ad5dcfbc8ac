"""Executable of the service's autoscaler that represents nodes by files.

python hook.py FOLDER list|launch|drain|recall|terminate

<folder>/<id>.json    a node as ``list`` prints it; with ``up`` the test's cluster shows it
<folder>/calls        arguments of each call, one line each
<folder>/broken-list  while it exists, ``list`` fails with its content; other verbs likewise
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> int:
    folder, verb = Path(sys.argv[1]), sys.argv[2]
    request = json.load(sys.stdin)
    if verb != "list":
        with open(folder / "calls", "a") as calls:
            calls.write(f"{verb} {json.dumps(request, sort_keys=True)}\n")
    if (folder / f"broken-{verb}").exists():
        print((folder / f"broken-{verb}").read_text(), file=sys.stderr)
        return 3
    if verb == "list":
        nodes = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        print(json.dumps({"nodes": nodes}))
    elif verb == "launch":
        for number in range(request["count"]):
            name = f"{request['group']}-{time.time_ns()}-{number}"
            write(folder, {"id": name, "group": request["group"], "hosts": [name], "launched_s": time.time()})
    elif verb == "terminate":
        (folder / f"{request['id']}.json").unlink()
    else:
        node = json.loads((folder / f"{request['id']}.json").read_text())
        write(folder, {**node, "state": "draining" if verb == "drain" else "up"})
    return 0


def write(folder: Path, node: dict[str, object]) -> None:
    fresh = folder / f"{node['id']}.fresh"
    fresh.write_text(json.dumps(node))
    fresh.rename(fresh.with_suffix(".json"))


if __name__ == "__main__":
    sys.exit(main())
