"""Memory that the machine really has, before something is timed.

A virtual machine may give free memory back to its host; whoever uses it next waits for it, page by page. Without this a
launch from a running Spark session, which has just taken what was warm, is measured with cold pages, and a peer that
starts right behind the end of another program with warm ones.
"""

from __future__ import annotations

import subprocess
import sys

GIGABYTES = 2
_TOUCH = (
    "size = int({gigabytes} * (1 << 30))\nmemory = bytearray(size)\nmemory[::4096] = b'1' * len(range(0, size, 4096))"
)


def touch_memory(gigabytes: float = GIGABYTES) -> None:
    """Use every page of that much memory once, in a process that ends; below two seconds later it is still there."""
    subprocess.run([sys.executable, "-c", _TOUCH.format(gigabytes=gigabytes)], check=True)
