"""Memory that the machine really has, touched before something is timed.

A virtual machine may return free memory to its host; the next process that uses it waits for it, page by page.
Otherwise a launch from a running Spark session, which has just used the warm pages, is measured with cold pages, and a
peer that starts right after the end of another program with warm ones.
"""

from __future__ import annotations

import subprocess
import sys

GIGABYTES = 2
_TOUCH = (
    "size = int({gigabytes} * (1 << 30))\nmemory = bytearray(size)\nmemory[::4096] = b'1' * len(range(0, size, 4096))"
)


def touch_memory(gigabytes: float = GIGABYTES) -> None:
    """Write to every page of ``gigabytes`` of memory once, in a process that ends.

    The pages remain available to this machine for at most two seconds.
    """
    subprocess.run([sys.executable, "-c", _TOUCH.format(gigabytes=gigabytes)], check=True)
