"""Sort keys that compare numbers by value: 9 before 10, in host names, addresses, racks and PCI buses."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any


@lru_cache(maxsize=8192)  # a layout calls it three times per member, during group start-up
def host_key(host: str) -> tuple[Any, ...]:
    """Return a sort key that orders hosts by number: 10.0.0.9 before 10.0.0.10, node9 before node10.

    Two spellings of one address (::1 and 0:0::1, [::1], Node-1.lan.) have one key.
    """
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        name = host.rstrip(".").lower()
        return (9, natural_key(name), name)
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return (6, int(address), address.scope_id or "") if mapped is None else (4, int(mapped), "")
    return (4, int(address), "")


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares digits as numbers: rack2 before rack10."""
    parts = re.split(r"([0-9]+)", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def bus_key(bus_id: str) -> tuple[tuple[int, ...], str]:
    """Return a sort key for a PCI bus id.

    00000000:3B:00.0 and 0000:3b:00.0 are equal; other text is compared as text.
    """
    try:
        return tuple(int(part, 16) for part in re.split("[:.]", bus_id)), ""
    except ValueError:
        return (), bus_id
