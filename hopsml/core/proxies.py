"""HTTP proxies of the environment: connections that bypass them, and their names in errors of failed requests."""

from __future__ import annotations

import ipaddress
import json
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, MutableMapping

_FOR_ALL, _FOR_GRPC = ("no_proxy", "NO_PROXY"), "no_grpc_proxy"


def host_of(address: str) -> str:
    """Return the host of ``host:port`` or ``[host]:port``, without brackets."""
    return address.rpartition(":")[0].strip("[]")


def hosts_of(cluster_json: str, addresses: Iterable[str]) -> list[str]:
    """Return the hosts of a cluster's tasks and of further addresses, each once.

    Args:
        cluster_json: TF_CONFIG's "cluster" as JSON; empty for none.
        addresses: further addresses, host:port.
    """
    tasks = json.loads(cluster_json) if cluster_json else {}
    listed = [str(address) for of_role in tasks.values() for address in of_role]
    return list(dict.fromkeys(host for address in [*listed, *addresses] if (host := host_of(address))))


def bypass_variables(hosts: Iterable[str], *environments: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make HTTP clients and gRPC connect to ``hosts`` directly, whatever proxy is set.

    gRPC sends the connections of TensorFlow's server and of JAX's coordination service through ``http_proxy``, and
    waits forever if the proxy does not answer. Hosts that the user has excluded stay excluded.

    Args:
        hosts: names or addresses, without ports.
        environments: mappings in which the user may have set the variables; the first that has a variable is used.
    """

    def users(*names: str) -> str:
        return next((value for name in names for one in environments if (value := one.get(name, "").strip())), "")

    wanted = [name for host in hosts for name in ((host, f"[{host}]") if ":" in host else (host,))]
    if not wanted:
        return {}
    lower, upper = _FOR_ALL
    found = {lower: users(lower, upper), upper: users(upper, lower)}
    for_grpc = users(_FOR_GRPC)
    # "*" alone means every host; gRPC does not support it.
    variables = {name: value if value == "*" else _joined(value, wanted) for name, value in found.items()}
    if for_grpc or found[lower] == "*":
        variables[_FOR_GRPC] = _joined(for_grpc, wanted)
    return variables


def opener(url: str, *handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """Return the opener for ``url``: direct for this machine's addresses, else through the environment's proxy.

    ``urllib.request.urlopen`` would use the proxies that the environment had at its first call in this process.
    """
    direct = [urllib.request.ProxyHandler({})] if is_loopback(_host(url)) else []
    return urllib.request.build_opener(*direct, *handlers)


def proxy_hint(url: str, *, by_requests: bool = False) -> str:
    """Return the part of an error message that names the proxy of ``url``; empty if it is requested directly.

    Args:
        url: the URL.
        by_requests: True if the client is the package ``requests``, which reads all_proxy as well.
    """
    parts, host = urllib.parse.urlsplit(url), _host(url)
    known = urllib.request.getproxies()
    names = [name for name in (parts.scheme, *(["all"] if by_requests else [])) if known.get(name)]
    if not names or is_loopback(host) or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return ""
    named = _named(known[names[0]])
    return f"; the request went through the proxy {named} ({names[0]}_proxy); set no_proxy={host} to connect directly"


def proxy_hint_for_scheme(scheme: str) -> str:
    """Return the part of an error message that names the proxy for a scheme; empty without one.

    It is for clients whose servers are unknown here.
    """
    proxy = urllib.request.getproxies().get(scheme, "")
    return f"; {scheme}_proxy names the proxy {_named(proxy)}; no_proxy excludes hosts" if proxy else ""


def _named(proxy: str) -> str:
    """Return host and port of a proxy, without its password."""
    return urllib.parse.urlsplit(proxy if "://" in proxy else f"//{proxy}").netloc.rpartition("@")[2]


def exclude_this_machine(environment: MutableMapping[str, str]) -> None:
    """Let clients on the package ``requests`` connect to loopback addresses directly, as ``opener`` does.

    Args:
        environment: variables of a process of hopsml's own.
    """
    environment.update(bypass_variables(("localhost", "127.0.0.1", "::1"), dict(environment)))


def _host(url: str) -> str:
    """Return the host of a URL; empty without one."""
    return urllib.parse.urlsplit(url).hostname or ""


def is_loopback(host: str) -> bool:
    """Return True for a loopback address or "localhost"."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _joined(excluded: str, hosts: Iterable[str]) -> str:
    """Append hosts to a comma-separated list, without duplicates."""
    names = [name for part in excluded.split(",") if (name := part.strip())]
    return ",".join(dict.fromkeys([*names, *hosts]))
