"""TensorBoard of each run for a notebook, and the embedding of local pages through the notebook's server.

Page servers run until the kernel ends.
"""

from __future__ import annotations

import atexit
import html
import importlib.util
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopsml.core import extras, listeners
from hopsml.errors import HopsmlError
from hopsml.notebook.tensorboard_server import events_url
from hopsml.storage.run_dir import RunDir

HEIGHT_PX = 700
END_S = 15.0
ASK_S = 5.0  # timeout for an answer of the notebook's server

_pages: dict[str, Page] = {}  # by URL of the events


@dataclass(frozen=True)
class Page:
    """Local web server on loopback; its process ends with this one, or when its standard input is closed."""

    title: str
    port: int
    process: subprocess.Popen[str]
    query: str = ""  # query string of its address, with the access token

    @property
    def address(self) -> str:
        """URL of the page on this machine."""
        return f"http://127.0.0.1:{self.port}/{self.query}"

    def close(self) -> None:
        """Stop the server's process; may be called again."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def open_page(directory: RunDir) -> Page:
    """Return the TensorBoard of a run, and start its server if necessary; returns once it serves.

    Raises:
        HopsmlError: the server does not start.
    """
    known = _pages.get(directory.events)
    if known is not None and known.process.poll() is None:
        return known
    _pages[directory.events] = page = _start(directory)
    return page


def close_all() -> None:
    """Stop all page servers; called when the kernel exits."""
    while _pages:
        _pages.popitem()[1].close()


def _start(directory: RunDir) -> Page:
    """Start the TensorBoard process and wait until it prints its port."""
    from hopsml.cluster.forking.fork_server import own_sys_path

    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "hopsml.notebook.tensorboard_server", events_url(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(own_sys_path())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the interrupt of a cell must not reach it
    )
    title = f"TensorBoard of {directory.run_id}"
    page = Page(title, 0, process)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline() or "{}")
    except BaseException:  # such as an interrupt: the caller no longer waits
        page.close()
        raise
    if "port" not in said:
        page.close()
        raise HopsmlError(said.get("error") or f"TensorBoard ended with exit status {process.returncode}")
    return Page(title, int(said["port"]), process)


atexit.register(close_all)

# path of a page on the notebook's server


def page_path(port: int, environment: Mapping[str, str], base_url: str, has_proxy: bool) -> str:
    """Return the path on the notebook's server at which its proxy serves a port; an empty string without a proxy.

    ``TENSORBOARD_PROXY_URL`` (with %PORT%), which TensorBoard's own notebook support reads, takes precedence.

    Args:
        port: port of the page.
        environment: environment variables.
        base_url: root of the notebook's server.
        has_proxy: whether the server has ``jupyter-server-proxy``.
    """
    given = environment.get("TENSORBOARD_PROXY_URL", "")
    if given:
        return given.replace("%PORT%", str(port))
    if not has_proxy:
        return ""
    base = environment.get("JUPYTERHUB_SERVICE_PREFIX") or base_url or "/"
    return f"/{base.strip('/')}/proxy/{port}/".replace("//", "/")


def find_page_path(port: int) -> str:
    """Return ``page_path`` for this kernel; the notebook's server is asked for the proxy if it can be reached."""
    server = server_record(os.environ)
    supposed = page_path(port, os.environ, str(server.get("base_url", "")), has_proxy=True)
    shows = server_shows(supposed, server)
    if shows is None:  # server unknown, or protected by a password: assume that it has the kernel's packages
        shows = importlib.util.find_spec("jupyter_server_proxy") is not None
    return page_path(port, os.environ, str(server.get("base_url", "")), shows)


def server_record(environment: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the record in Jupyter's runtime folder of the server that started this kernel; empty if unknown."""
    server = environment.get("JPY_PARENT_PID", "")
    if not server.isdigit():
        return {}
    try:
        from jupyter_core.paths import jupyter_runtime_dir

        content = json.loads(Path(jupyter_runtime_dir(), f"jpserver-{server}.json").read_text())
    except (ImportError, OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def server_shows(path: str, server: Mapping[str, Any]) -> bool | None:
    """Return True if the notebook's server has a page at this path; None if it cannot be asked.

    The server's token is sent to that server only.
    """
    parts = urllib.parse.urlsplit(str(server.get("url", "")))
    if not parts.scheme.startswith("http") or not server.get("token"):
        return None
    request = urllib.request.Request(f"{parts.scheme}://{parts.netloc}{path}")
    request.add_unredirected_header("Authorization", f"token {server['token']}")
    # not through an HTTP proxy
    handlers = (urllib.request.ProxyHandler({}), listeners.OwnServersHandler("the notebook's server"))
    directly = urllib.request.build_opener(*handlers)
    try:
        with directly.open(request, timeout=ASK_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        return False if error.code == 404 else None
    except (OSError, ValueError):
        return None


def bundle(page: Page, path: str) -> dict[str, str]:
    """Return the MIME bundle of a page: an embedded frame if the notebook's server can proxy it, else its address."""
    title = page.title
    if not path:
        address = html.escape(page.address, quote=True)
        where = f"{page.address} on the machine of this kernel"
        install = extras.install_command("notebook")
        hint = f"with jupyter-server-proxy beside the notebook's server the page stands here instead: {install}"
        link = f'<a href="{address}" target="_blank" rel="noopener">{address}</a>'
        shown = f"{html.escape(title)}: {link} on the machine of this kernel"
        return {
            "text/plain": f"{title}: {where}; {hint}",
            "text/html": f'<div>{shown}<div style="opacity:0.65">{html.escape(hint)}</div></div>',
        }
    link = html.escape(path + page.query, quote=True)
    frame = (
        f'<div><a href="{link}" target="_blank" rel="noopener">{html.escape(title)}</a></div>'
        f'<iframe src="{link}" width="100%" height="{HEIGHT_PX}" style="border:1px solid rgba(128,128,128,0.3)"></iframe>'
    )
    return {
        "text/plain": f"{title}: {path}{page.query} on the notebook's server, {page.address} from its machine",
        "text/html": frame,
    }
