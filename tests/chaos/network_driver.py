"""Driver whose agents run on other hosts of a test network: ``python -m tests.chaos.network_driver FILE``.

It runs on a host of ``tools.shaped_network``. FILE is JSON: ``address`` of this host, ``pids`` of the hosts on which agents
are started in rotation, the ``verb`` of ``hopsml.experiment``, the ``program`` of this module, its ``options``. The last
line of its output is JSON: the run's value, or its error.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.local import LocalBackend
from hopsml.errors import RunError
from tests.chaos.runner import WAIT_S
from tools.shaped_network import Network, inside


def tensorflow(pause_s: float = 0.0) -> float:
    """Sum ones over TensorFlow's server, twice, with ``pause_s`` seconds without traffic in between."""
    import tensorflow as tf

    import hopsml.tensorflow

    strategy = hopsml.tensorflow.strategy()

    @tf.function
    def step() -> Any:
        def of_replica() -> Any:
            return tf.distribute.get_replica_context().all_reduce("sum", tf.ones([50_000]))

        return strategy.run(of_replica)

    first = step()
    time.sleep(pause_s)
    return float(first[0] + step()[0])


def torch(pause_s: float = 0.0) -> float:
    """Sum ones over torch's default process group, twice, with ``pause_s`` seconds in between."""
    import torch.distributed as dist
    from torch import ones

    total = 0.0
    for number in range(2):
        if number:
            time.sleep(pause_s)
        values = ones(50_000)
        dist.all_reduce(values)
        total += float(values[0])
    return total


def own(pause_s: float = 0.0) -> float:
    """Sum ones over hopsml's own collective, twice, with ``pause_s`` seconds in between."""
    import numpy as np

    import hopsml

    first = hopsml.all_reduce(np.ones(50_000), "sum")
    time.sleep(pause_s)
    return float(first[0] + hopsml.all_reduce(np.ones(50_000), "sum")[0])


def jax(pause_s: float = 0.0) -> float:
    """Sum ones over JAX's collective, twice, with ``pause_s`` seconds in between."""
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    first = multihost_utils.process_allgather(jnp.ones(50_000)).sum(0)
    time.sleep(pause_s)
    return float(first[0] + multihost_utils.process_allgather(jnp.ones(50_000)).sum(0)[0])


def servers(pause_s: float = 0.0) -> float:
    """Do two steps of a parameter server's worker, with ``pause_s`` seconds without traffic in between."""
    import tensorflow as tf

    import hopsml.tensorflow

    strategy = hopsml.tensorflow.strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)

    def step() -> Any:
        return total.assign_add(1.0)

    for number in range(2):
        if number:
            time.sleep(pause_s)
        for _ in range(2):
            coordinator.schedule(tf.function(step))
        coordinator.join()
    return float(total.read_value())


def cut_off(mark: str) -> float:
    """Sum repeatedly over hopsml's collective; ``mark`` is a file that is written after the first sum."""
    import numpy as np

    import hopsml

    while True:
        hopsml.all_reduce(np.ones(100), "sum")
        Path(mark).touch()
        time.sleep(0.1)


PROGRAMS: dict[str, Callable[..., float]] = {
    program.__name__: program for program in (tensorflow, torch, own, jax, servers, cut_off)
}


def main(path: str) -> None:
    """Train, and print the value or the error as JSON."""
    requested = json.loads(Path(path).read_text())
    _spread(requested["address"], requested["pids"], requested["of_hosts"])
    options = (
        {"args": requested["args"], **requested["options"]}
        if requested["verb"] != "parameter_server"
        else requested["options"]
    )
    program = PROGRAMS[requested["program"]]
    found: dict[str, Any] = {}
    try:
        verb = getattr(experiment, requested["verb"])
        call = program if "args" in options else _with(program, requested["args"])
        found = {"value": verb(call, **options).value}
    except RunError as error:
        found = {"error": type(error).__name__, "text": str(error)}
    finally:
        experiment.shutdown()
    print(json.dumps(found))


def _with(program: Callable[..., float], arguments: dict[str, Any]) -> Callable[[], float]:
    def call() -> float:
        return program(**arguments)

    return call


def _spread(address: str, pids: list[int], of_hosts: dict[str, dict[str, str]]) -> None:
    """Start agents on those hosts, in rotation, with this host's address for the coordinator.

    ``of_hosts``: variables of a host's agents, by its number.
    """
    number, start = itertools.count(), LocalBackend._start

    def start_on_host(bootstrap: Bootstrap, index: int) -> subprocess.Popen[bytes]:
        place = next(number) % len(pids)
        with inside(pids[place]), pytest.MonkeyPatch.context() as variables:
            for name, value in of_hosts.get(str(place), {}).items():
                variables.setenv(name, value)
            return start(bootstrap, index)

    environment = pytest.MonkeyPatch()  # for the rest of this process
    environment.setattr(LocalBackend, "_start", staticmethod(start_on_host))
    environment.setattr(LocalBackend, "addresses", lambda self: (address, (address,)))


def play(
    network: Network,
    folder: Path,
    verb: str,
    program: str,
    variables: dict[str, str] | None = None,
    args: dict[str, Any] | None = None,
    workers: int = 2,
    hosts: int = 2,
    wait_s: float = WAIT_S,
    of_hosts: dict[int, dict[str, str]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run a driver on the first host and agents on the others; return its "value", or "error" and "text"; and its "log".

    ``variables``: environment of driver and agents; ``of_hosts``: further variables of a host's agents. A driver that has
    not ended after ``wait_s`` seconds is killed, which returns {"hangs": True}.
    """
    file = folder / "asked.json"
    if "min_workers" not in options:
        options["num_workers" if verb != "parameter_server" else "num_ps"] = (
            workers if verb != "parameter_server" else 1
        )
    file.write_text(
        json.dumps(
            {
                "address": network.address(0),
                "pids": [network.pid(1 + host) for host in range(hosts)],
                "verb": verb,
                "program": program,
                "args": args or {},
                "options": options,
                "of_hosts": of_hosts or {},
            }
        )
    )
    command = network.command(0, [sys.executable, "-m", "tests.chaos.network_driver", str(file)])
    environment = {
        **os.environ,
        "HOPSML_PROFILE": "local",
        "HOPSML_LOCAL_SLOTS": str(workers if verb != "parameter_server" else 3),
        "HOPSML_PROJECT_URL": f"file://{folder}/project",
        **(variables or {}),
    }
    log = folder / "driver.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as driver,
    ):
        try:
            output = driver.communicate(timeout=wait_s)[0]
        except subprocess.TimeoutExpired:
            return {"hangs": True, "log": log.read_text(errors="replace")}
        finally:
            driver.kill()
    log_text = log.read_text(errors="replace")
    assert driver.returncode == 0, f"{output}\n{log_text}"
    return {**json.loads(output.splitlines()[-1]), "log": log_text}


if __name__ == "__main__":
    main(sys.argv[1])
