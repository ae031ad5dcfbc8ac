"""Host of its own for one process: a network, a name, a hosts file and a resolver in namespaces of Linux; requires root."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

WIRED = "ip link add eth0 type veth peer name far; ip link set eth0 up; ip link set far up;"
SIX = "fd00:8::5"
ONLY_IPV6 = f"{WIRED} ip -6 addr add {SIX}/64 dev eth0 nodad"  # and 127.0.0.1, at which py4j always listens


def on_lone_host(
    folder: Path, devices: str, command: Sequence[str], *, hosts: str = "", resolver: str = "", name: str = "node1"
) -> list[str]:
    """Return the command line that runs a command on such a host; its namespaces end with its last process.

    Args:
        folder: where the host's files are written.
        devices: shell commands that create its devices; loopback is up before.
        command: the command.
        hosts: content of /etc/hosts.
        resolver: content of /etc/resolv.conf; by default there is no name server.
        name: host name.
    """
    (folder / "hosts").write_text(hosts)
    (folder / "resolv.conf").write_text(resolver or "options timeout:1 attempts:1\n")
    script = f"""set -e
    mount --bind {folder}/hosts /etc/hosts
    mount --bind {folder}/resolv.conf /etc/resolv.conf
    hostname {name}
    ip link set lo up
    {devices}
    exec "$@"
    """
    return ["unshare", "--net", "--mount", "--uts", "sh", "-c", script, "sh", *command]
