"""Local ``hopsml ui`` server of each project for a notebook, which runs until the kernel ends."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import urllib.parse

from hopsml.errors import HopsmlError
from hopsml.notebook.tensorboard import Page
from hopsml.storage import urls

# The server ends when its standard input is closed, so also if its parent is killed.
_START = (
    "import os, signal, sys, threading; "
    "wait = lambda: (sys.stdin.read(), os.kill(os.getpid(), signal.SIGTERM)); "
    "threading.Thread(target=wait, daemon=True).start(); "
    "from hopsml.cli import main; main()"
)

_pages: dict[str, Page] = {}  # by project URL


def open_page(project_url: str) -> Page:
    """Return the page of a project, and start its server if necessary; returns once it serves.

    Raises:
        HopsmlError: the server does not start.
    """
    known = _pages.get(project_url)
    if known is not None and known.process.poll() is None:
        return known
    _pages[project_url] = page = _start(project_url)
    return page


def close_all() -> None:
    """Stop all page servers; called when the kernel exits."""
    while _pages:
        _pages.popitem()[1].close()


def _start(project_url: str) -> Page:
    """Start the page's server and wait until it prints its address."""
    from hopsml.cluster.forking.fork_server import own_sys_path

    title = f"Runs of {urls.name(project_url) or project_url}"
    with tempfile.TemporaryFile("w+") as problems:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, "ui", "--no-browser", project_url],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(own_sys_path())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=problems,
            text=True,
            start_new_session=True,  # the interrupt of a cell must not reach it
        )
        page = Page(title, 0, process)
        try:
            assert process.stdout is not None
            address = urllib.parse.urlsplit(process.stdout.readline().strip())
        except BaseException:  # such as an interrupt: the caller no longer waits
            page.close()
            raise
        if not address.port:
            page.close()
            problems.seek(0)
            said = problems.read().strip()[-2000:]
            raise HopsmlError(said or f"hopsml ui ended with exit status {process.returncode}, and said nothing")
    return Page(title, address.port, process, f"?{address.query}")


atexit.register(close_all)
