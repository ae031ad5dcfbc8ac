"""Two fork servers that have imported TensorFlow, as two agents of one host have, until standard input ends.

Their pids are written as JSON to the file that the argument names.
"""

from __future__ import annotations

import asyncio
import json
import sys

from hopsml.cluster.forking import fork_client

MODULES = ("tensorflow",)


async def main() -> None:
    """Start both servers, write their pids once they are ready, and wait for the end of standard input."""
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
