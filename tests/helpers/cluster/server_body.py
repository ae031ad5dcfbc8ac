"""Servers without a framework: each reports its process and the number of its start."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

from hopsml.cluster.worker.context import WorkerContext

BODY = f"{__name__}:run_role"


def run_role(function: Callable[..., Any], arguments: dict[str, Any], context: WorkerContext) -> Any:
    """Run a role like ``parameter_servers.run_role``: workers and servers listen at their addresses of TF_CONFIG."""
    print(os.environ["TF_CONFIG"], flush=True)
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    if context.role in ("chief", "evaluator"):
        return function(**arguments)
    config = json.loads(os.environ["TF_CONFIG"])
    host, _, port = config["cluster"][context.role][config["task"]["index"]].rpartition(":")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, int(port)))
        listener.listen()
        while True:
            with listener.accept()[0] as connection:
                connection.sendall(json.dumps([os.getpid(), context.generation]).encode())


def ask_until(end_file: str) -> dict[str, Any]:
    """Report as the chief which start answers at each address, until a file of this name exists."""
    import time

    import hopsml

    config = json.loads(os.environ["TF_CONFIG"])
    if config["task"]["type"] == "evaluator":
        while not os.path.exists(end_file):
            time.sleep(0.02)
        return {}
    step = 0
    while not os.path.exists(end_file):
        addresses = [
            (role, n, one) for role in ("worker", "ps") for n, one in enumerate(config["cluster"].get(role, ()))
        ]
        answers = {f"{role}{n}": _answer(address) for role, n, address in addresses}
        step += 1
        hopsml.report(step=step, **answers)
        time.sleep(0.02)
    return {"roles": sorted(config["cluster"]), "steps": step}


def _answer(address: str) -> int:
    """Return the generation of the answering server; -1 if none answers."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 0.2) as connection:
            connection.settimeout(0.2)
            return int(json.loads(connection.recv(100))[1])
    except (OSError, ValueError):
        return -1
