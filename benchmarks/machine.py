"""Facts about the machine on which a table was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from typing import Any


def facts() -> dict[str, Any]:
    """Return cores, memory, load and versions; the load shows whether other programs were running."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    java = subprocess.run(["java", "-version"], stderr=subprocess.PIPE, text=True, check=False).stderr.splitlines()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages * size / 2**30, 1),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java[0] if java else "",
        "packages": {name: version(name) for name in ("pyspark", "tensorflow-cpu", "keras")},
    }
