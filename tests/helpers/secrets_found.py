"""Readers of every byte that runs, jobs and servers show, and the search for planted secrets in it.

    found = secrets_found(of_store(project), of_pages(address, token, {"job": [job]}), of_processes(), secrets=["s3cr3t"])
    assert found == {}                                       # place -> bytes around the secret

A secret is found as text, in UTF-16, URL encoding, hexadecimal digits and base64, within pickles, tables and archives.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import itertools
import json
import os
import pickletools
import resource
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

import psutil

from hopsml.storage import filesystem, urls

# Routes of the page, which are not in the OpenAPI document.
_PAGES = ("/", "/api/about", "/api/runs")
_RUN_PAGES = (
    "/api/runs/{run}", "/api/runs/{run}/metrics", "/api/runs/{run}/slow", "/api/runs/{run}/logs", "/api/runs/{run}/logs.zip",
    "/api/runs/{run}/search", "/api/runs/{run}/profiles", "/api/runs/{run}/files", "/api/compare?runs={run}",
)  # fmt: skip

Sources = Mapping[str, bytes]  # content by the name of its place


def secrets_found(*sources: Sources, secrets: Collection[str | bytes]) -> dict[str, str]:
    """Return the places where one of the secrets, a text or bytes, is, each with its context; empty if there is none."""
    found: dict[str, str] = {}
    wanted = {spelling for secret in secrets for spelling in _spellings(secret)}
    for name, content in itertools.chain.from_iterable(one.items() for one in sources):
        for place, data in _parts(name, content):
            for spelling in wanted:
                if (at := data.find(spelling)) >= 0:
                    found[place] = repr(data[max(0, at - 60) : at + 60])
    return found


def _spellings(secret: str | bytes) -> set[bytes]:
    """Return the forms in which a secret may be written; base64 depends on the position modulo three."""
    raw = secret if isinstance(secret, bytes) else secret.encode()
    encoded = set[bytes]()
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw)
        uncertain = (before + len(raw)) % 3  # of the last character of an incomplete group, other bytes may follow
        encoded.add(text[(0, 2, 3)[before] : len(text) - (0, 3, 2)[uncertain]])
    long = {one.translate(bytes.maketrans(b"+/", b"-_")) for one in encoded} | encoded
    found = {
        raw,
        raw.hex().encode(),
        raw.hex().upper().encode(),
        quote(raw, safe="").encode(),
        quote(raw).encode(),
        *long,
    }
    return found if isinstance(secret, bytes) else found | {secret.encode("utf-16-le")}


def _parts(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the content and its parts: strings of a pickle, columns of a table, members of an archive."""
    yield name, content
    if name.endswith(".parquet"):
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(io.BytesIO(content))
        yield f"{name}:table", repr(table.to_pydict()).encode() + repr(table.schema).encode()
    if content[:2] == b"\x80\x05":
        yield f"{name}:pickle", "\n".join(str(argument) for _, argument, _ in pickletools.genops(content)).encode()
    if content[:2] == b"\x1f\x8b":
        yield from _parts(f"{name}:gzip", gzip.decompress(content))
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield from _parts(f"{name}:{member}", archive.read(member))


def of_store(url: str) -> dict[str, bytes]:
    """Return every file below a URL, of any store."""
    system = filesystem.for_url(url)
    return {urls.relative(one.url, url): system.read_bytes(one.url) for one in filesystem.walk(url) if not one.is_dir}


def of_processes() -> dict[str, bytes]:
    """Return the command line of every process of this machine, as every user can read it."""
    found = dict[str, bytes]()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found[f"/proc/{pid}/cmdline"] = Path("/proc", pid, "cmdline").read_bytes()
    return found


def of_pages(address: str, token: str, values: Mapping[str, Sequence[str]]) -> dict[str, bytes]:
    """Return the answers of a job service: its page, and each GET route but those of endless streams.

    Args:
        address: URL of the service.
        token: Token of a user.
        values: Values for the parameters of paths and queries; a route with another parameter in its path is left out.
    """

    def get(path: str) -> bytes:
        request = Request(address.rstrip("/") + path, headers={"Authorization": f"Bearer {token}"})
        try:
            with build_opener(ProxyHandler({})).open(request, timeout=30) as answer:
                content: bytes = answer.read()
        except HTTPError as refused:  # an error's text counts as well
            with refused:
                content = refused.read()
        return content

    places = [*_PAGES, *(page.replace("{run}", run) for page in _RUN_PAGES for run in values.get("run", ()))]
    found = {place: get(place) for place in places}
    document = json.loads(get("/api/v1/openapi.json"))
    for path, methods in document["paths"].items():
        described = methods.get("get")
        if described is None or "text/event-stream" in json.dumps(described):
            continue
        parameters = {one["name"]: one["in"] for one in described.get("parameters", ())}
        known = [name for name in parameters if name in values]
        if any(kind == "path" and name not in known for name, kind in parameters.items()):
            continue
        for chosen in itertools.product(*(values[name] for name in known)):
            filled, query = path, []
            for name, value in zip(known, chosen, strict=True):
                if parameters[name] == "path":
                    filled = filled.replace("{" + name + "}", quote(value, safe=""))
                else:
                    query.append(f"{name}={quote(value, safe='')}")
            target = f"{'' if filled.startswith('/api') else '/api/v1'}{filled}" + (
                "?" + "&".join(query) if query else ""
            )
            found[target] = get(target)
    return found


@contextlib.contextmanager
def core_files_allowed() -> Iterator[None]:
    """Context in which this process and those that it starts may write core files, if its hard limit allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def could_dump_core(pid: int) -> list[str]:
    """Return the descendants of a process, and itself, that would write their memory to a core file if they crashed."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in (whole := psutil.Process(pid), *whole.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                if process.rlimit(psutil.RLIMIT_CORE)[0] != 0:
                    found.append(" ".join(process.cmdline())[:200])
    return found
