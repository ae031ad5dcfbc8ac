"""Connections of another user, without any secret, to every port on which a training run listens.

The run is elastic and has two workers, so that each kind of port exists: the coordinator's, the agents' commit servers,
and those of the workers. A port counts as served if the service behind it responds: TensorFlow answers a call, a web
server answers with anything but a refusal. A TLS handshake alone is no service. The benchmark needs the right to become
another user.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import first_step, steps_read
from benchmarks.figures import Report, measured, worst_of
from benchmarks.launched import Command, Launched, environment, temporary_folder
from benchmarks.options import Options
from benchmarks.peers import bare
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER

WORKERS = 2
WAYS = ("tensorflow", "hopsml")
BY_HAND = "bare"
NOBODY = 65534
START_TIMEOUT_S = 170.0
QUESTIONS_TIMEOUT_S = 120.0
_WILDCARDS = {"::": "::1", "0.0.0.0": "127.0.0.1"}


@dataclass(frozen=True)
class Door:
    """A port on which a run listens: address, process, and what a caller receives ("" for nothing)."""

    address: str
    process: str
    served: str


def run(options: Options) -> Report:
    """Count the ports that respond, for both methods of reducing and for TensorFlow by hand."""
    if os.geteuid() != 0:
        return Report(notes=["collective.foreign_peers: not measured, as only root can become another user"])
    report = Report()
    python = PEER.python(options.say)
    counts = []
    for way in (*WAYS, BY_HAND):
        found = doors(way, python, NOBODY)
        counts.append(float(sum(bool(door.served) for door in found)))
        told = ", ".join(f"{door.process} {door.served or 'refuses'}" for door in found)
        report.notes.append(f"foreign peers, {way}: {told}")
        options.say(report.notes[-1])
    ours, by_hand = counts[:-1], counts[-1:]
    report.figures += [
        worst_of("collective.foreign_peers", ours, "ports"),
        measured("collective.foreign_peers_by_hand", by_hand, "ports"),
    ]
    return report


def doors(way: str, python: Path, *users: int) -> list[Door]:
    """Return what each user, given by number, receives at each port of a training; one user after another."""
    with temporary_folder() as name:
        folder = Path(name)
        with Launched(commands(way, python, folder), folder) as launched:
            if way == BY_HAND:
                first_step.wait(launched, folder, WORKERS)
            else:
                launched.wait_until(
                    lambda: len(steps_read.read(folder)) == WORKERS, START_TIMEOUT_S, "a step of each worker"
                )
            listening = ports(launched.alive())
            return [
                Door(address, process, served)
                for user in users
                for (address, process), served in zip(
                    listening.items(), ask(python, folder, user, list(listening)), strict=True
                )
            ]


def commands(way: str, python: Path, folder: Path) -> list[Command]:
    """Return the commands of the training by hand, or of the driver of a hopsml run."""
    if way == BY_HAND:
        return bare.start(python, [str(SCRIPTS / "bare_job.py"), str(folder), str(WORKERS), "0"], WORKERS)
    conf = folder / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text(f"master: none\nlocal_slots: {WORKERS}\n")
    variables = {"HOPSML_CONF_DIR": str(conf), "HOPSML_PROJECT_URL": f"file://{folder}/project"}
    return [Command([str(python), str(SCRIPTS / "hopsml_elastic.py"), str(folder), str(WORKERS), way], variables)]


def ports(pids: Sequence[int]) -> dict[str, str]:
    """Return address -> process name of the ports on which these processes listen."""
    found = {}
    for pid in pids:
        process = psutil.Process(pid)
        for one in process.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN:
                host = _WILDCARDS.get(one.laddr.ip, one.laddr.ip)
                text = f"[{host}]:{one.laddr.port}" if ":" in host else f"{host}:{one.laddr.port}"
                found[text] = process.name()
    return found


def ask(python: Path, folder: Path, user: int, addresses: Sequence[str]) -> list[str]:
    """Return what this user receives at each address."""
    asked = subprocess.run(
        [str(python), str(SCRIPTS / "stranger.py"), str(user), *addresses],
        env=environment({}, folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=QUESTIONS_TIMEOUT_S,
        check=False,
    )
    if asked.returncode:
        raise RuntimeError(f"the stranger broke off: {asked.stderr[-2000:]}")
    return list(json.loads(asked.stdout))
