"""Tests of the page's files: small, without external resources, third-party files as published."""

from __future__ import annotations

import gzip
import hashlib
import json
import re

import pytest

from hopsml.service.rest import page_files
from hopsml.service.rest.page_files import WEB, read_page_files

pytestmark = pytest.mark.fast

LIB = WEB / "lib"
MOST_BYTES = 150_000  # of the whole page, compressed
OURS = [path for path in sorted(WEB.rglob("*")) if path.is_file() and LIB not in path.parents]
VENDORED = json.loads((LIB / "vendored.json").read_text())


def test_compressed_page_is_below_its_size_limit() -> None:
    sizes = {
        name: len(file.compressed) for name, file in read_page_files().items() if not name.endswith((".json", ".txt"))
    }
    assert sum(sizes.values()) <= MOST_BYTES, sizes


@pytest.mark.parametrize("entry", VENDORED, ids=lambda entry: entry["file"])
def test_third_party_file_is_unchanged_and_has_its_licence(entry: dict[str, str]) -> None:
    assert hashlib.sha256((LIB / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
    licence = (LIB / entry["licence_file"]).read_text()
    assert {"MIT": "Permission is hereby granted", "Apache-2.0": "Apache License"}[entry["licence"]] in licence
    assert entry["version"] and len(entry["upstream_sha256"]) == 64


def test_every_file_of_lib_is_listed() -> None:
    listed = {entry["file"] for entry in VENDORED} | {entry["licence_file"] for entry in VENDORED} | {"vendored.json"}
    assert {path.relative_to(LIB).as_posix() for path in LIB.rglob("*") if path.is_file()} == listed


def test_index_page_has_no_inline_scripts_or_styles() -> None:
    page = (WEB / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", page)
    assert all(not name.startswith(("/", "http")) for name in re.findall(r'(?:src|href)="([^"]+)"', page))


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.relative_to(WEB).as_posix())
def test_page_script_creates_no_html_from_text_and_uses_relative_addresses(path: object) -> None:
    content = open(str(path)).read()  # noqa: SIM115
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "dangerouslySetInnerHTML",
        "eval(",
        "document.write",
    ):
        assert forbidden not in content
    assert not re.search(r"""["'`](https?:)?//(?!www\.w3\.org)""", content)
    assert not re.search(r"""(?:fetch|EventSource)\(["'`]/""", content)


def test_imports_name_existing_files() -> None:
    for path in OURS:
        if path.suffix == ".js":
            for name in re.findall(r'from "([^"]+)"', path.read_text()):
                assert name.startswith(".") and (path.parent / name).resolve().is_file(), (path, name)


def test_page_is_bundled_into_few_files_with_all_modules_in_its_script() -> None:
    sent = {name for name in read_page_files() if not name.startswith("lib/licences/")} - {"lib/vendored.json"}
    assert sent == {"index.html", "icon.svg", "theme.js", "app.js", "style.css", "lib/uPlot.js"}
    contents = {path.relative_to(WEB).as_posix(): path.read_bytes() for path in WEB.rglob("*.js")}
    order = page_files.modules_in_order(contents, "app.js")
    assert set(order) == set(contents) - {"theme.js", "lib/uPlot.js"} and order[-1] == "app.js"
    assert order.index("lib/preact.js") < order.index("lib.js") < order.index("pages/run.js")


def test_circular_imports_and_unsupported_forms_are_refused() -> None:
    circle = {
        "a.js": b'import { b } from "./b.js";\nexport { a };',
        "b.js": b'import { a } from "./a.js";\nexport { b };',
    }
    with pytest.raises(ValueError, match=r"a\.js -> b\.js -> a\.js"):
        page_files.join_modules(circle, "a.js")
    for other in (b"export const a = 1;", b'import * as b from "./b.js";', b'let a;export * from "./b.js";'):
        with pytest.raises(ValueError, match=r"a\.js imports or exports in a way"):
            page_files.join_modules({"a.js": other}, "a.js")


def test_compressed_files_are_equal_to_the_originals() -> None:
    assert all(gzip.decompress(file.compressed) == file.content for file in read_page_files().values())
