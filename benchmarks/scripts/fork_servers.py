"""Two fork servers that have imported TensorFlow, as two agents of one host have, until standard input ends.

Their pids go into the file that is named, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from hopsml.cluster.forking import fork_client

MODULES = ("tensorflow",)


async def main() -> None:
    """Start, wait until both are ready, say so, wait for the end of standard input."""
    servers = [fork_client.ForkClient(MODULES, *fork_client.start_process(MODULES)) for _ in range(2)]
    for server in servers:
        await server.ready
    with open(sys.argv[1], "w") as file:
        json.dump([server._process.pid for server in servers], file)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        await server.close()


if __name__ == "__main__":
    asyncio.run(main())
