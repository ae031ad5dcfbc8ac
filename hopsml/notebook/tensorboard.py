"""Pages beside a notebook, kept until the kernel ends, shown through the notebook's server; TensorBoard of each run."""

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

from hopsml import extras
from hopsml.errors import HopsmlError
from hopsml.notebook.tensorboard_server import events_of
from hopsml.storage.run_dir import RunDir

HEIGHT_PX = 700
END_S = 15.0
ASK_S = 5.0  # for the notebook's server to answer

_pages: dict[str, Page] = {}  # by the URL of the events


@dataclass(frozen=True)
class Page:
    """What serves on loopback; ``process`` ends with this one, or when its standard input is closed."""

    title: str
    port: int
    process: subprocess.Popen[str]
    query: str = ""  # of its address, with what lets one in

    @property
    def address(self) -> str:
        """URL at which it is found from this machine."""
        return f"http://127.0.0.1:{self.port}/{self.query}"

    def close(self) -> None:
        """End the server's process; may be called again."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def open_page(directory: RunDir) -> Page:
    """The page of a run, started when there is none; returns when it serves. HopsmlError when it does not."""
    known = _pages.get(directory.events)
    if known is not None and known.process.poll() is None:
        return known
    _pages[directory.events] = page = _start(directory)
    return page


def close_all() -> None:
    """End all pages; done at the kernel's end in any case."""
    while _pages:
        _pages.popitem()[1].close()


def _start(directory: RunDir) -> Page:
    from hopsml.cluster.forking.fork_environment import own_sys_path

    process = subprocess.Popen(
        [sys.executable, "-m", "hopsml.notebook.tensorboard_server", events_of(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(own_sys_path())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the interrupt of a cell is not for it
    )
    title = f"TensorBoard of {directory.run_id}"
    page = Page(title, 0, process)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline() or "{}")
    except BaseException:  # an interrupt: nobody waits for it any more
        page.close()
        raise
    if "port" not in said:
        page.close()
        raise HopsmlError(said.get("error") or f"TensorBoard ended with exit status {process.returncode}")
    return Page(title, int(said["port"]), process)


atexit.register(close_all)

# -- where a browser finds it


def page_path(port: int, environment: Mapping[str, str], base_url: str, has_proxy: bool) -> str:
    """The path on the notebook's own server under which its proxy shows a port; "" without a proxy.

    ``base_url``: where that server has its root. ``TENSORBOARD_PROXY_URL`` (with %PORT%), which TensorBoard's own
    notebook support reads, comes first.
    """
    given = environment.get("TENSORBOARD_PROXY_URL", "")
    if given:
        return given.replace("%PORT%", str(port))
    if not has_proxy:
        return ""
    base = environment.get("JUPYTERHUB_SERVICE_PREFIX") or base_url or "/"
    return f"/{base.strip('/')}/proxy/{port}/".replace("//", "/")


def path_here(port: int) -> str:
    """``page_path`` for this kernel. Whether the notebook's server has the proxy it says itself, where it can be asked."""
    server = server_note(os.environ)
    supposed = page_path(port, os.environ, str(server.get("base_url", "")), has_proxy=True)
    shows = server_shows(supposed, server)
    if shows is None:  # known by nobody here, or it wants a password: then the kernel's packages are taken for its own
        shows = importlib.util.find_spec("jupyter_server_proxy") is not None
    return page_path(port, os.environ, str(server.get("base_url", "")), shows)


def server_note(environment: Mapping[str, str]) -> Mapping[str, Any]:
    """What the Jupyter server that started this kernel has noted of itself in its runtime folder; empty if unknown."""
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
    """Whether the notebook's server has a page at this path; None where it cannot be asked. Its token goes to it alone."""
    parts = urllib.parse.urlsplit(str(server.get("url", "")))
    if not parts.scheme.startswith("http") or not server.get("token"):
        return None
    request = urllib.request.Request(f"{parts.scheme}://{parts.netloc}{path}")
    request.add_unredirected_header("Authorization", f"token {server['token']}")
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not by way of an http_proxy
    try:
        with directly.open(request, timeout=ASK_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        return False if error.code == 404 else None
    except (OSError, ValueError):
        return None


def bundle(page: Page, path: str) -> dict[str, str]:
    """What the notebook shows: the page itself where its server can reach it, else where to find it."""
    title = page.title
    if not path:
        address = html.escape(page.address, quote=True)
        where = f"{page.address} on the machine of this kernel"
        install = extras.install("notebook")
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
