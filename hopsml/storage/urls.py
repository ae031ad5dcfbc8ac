"""URLs of files as text: joins, splits and classifies them without access to a file system.

A URL is ``scheme://authority/path`` or a bare local path. Nothing is percent-encoded, as in Hadoop itself: a space is a
space. ``file://`` URLs follow the same rule.
"""

from __future__ import annotations

import posixpath
import re
import secrets

from hopsml.errors import ArgumentError

TEMPORARY_PREFIX = ".tmp-"
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"(file|hdfs|hopsfs|viewfs|webhdfs|swebhdfs|s3a?|gs|abfss?|https?):/(?!/)")
# A remote URL behind a local prefix; the file system itself may have folded "//" into "/".
_EMBEDDED = re.compile(r"/(hdfs|hopsfs|viewfs|webhdfs|swebhdfs|s3a?|gs|abfss?|memory):/{1,2}([^/]+)(/.*)?$")


def check_slashes(url: str) -> None:
    """Raise ArgumentError for ``hdfs:/x`` and ``file:/x``, which would be read as local paths."""
    if found := _ONE_SLASH.match(url):
        raise ArgumentError(
            f"{url[:200]!r} has one slash after {found[1]}: and would be a path on this machine; write "
            f"{found[1]}:///{url[found.end() :][:200]}, or {found[1]}://HOST/... if it has a host"
        )


def split(url: str) -> tuple[str, str, str]:
    """Return ``(scheme, authority, path)``; a bare path has the scheme ``""``, a URL's path starts with ``/``."""
    found = _SCHEME.match(url)
    if not found:
        return "", "", url
    authority, slash, rest = url[found.end() :].partition("/")
    return found.group(1).lower(), authority, slash + rest or "/"


def scheme_and_authority(url: str) -> str:
    """Return scheme and authority, for instance ``hdfs://ns1``; empty for a bare path."""
    scheme, authority, _ = split(url)
    return f"{scheme}://{authority}" if scheme else ""


def is_local(url: str) -> bool:
    """Return True if the URL is a file of this machine: a bare path or ``file://``."""
    return split(url)[0] in ("", "file")


def join(url: str, *names: str) -> str:
    """Return the URL of ``names`` below ``url``; empty names are skipped.

    A name may contain ``/`` but not start with it.
    """
    for name in names:
        if not name:
            continue
        if name.startswith("/"):
            raise ArgumentError(f"{name!r} cannot be joined to {url!r}: the path must be relative")
        url = url + name if url.endswith("/") else f"{url}/{name}"
    return url


def parent(url: str) -> str:
    """Return the directory that contains ``url``; the root is its own parent."""
    root, path = scheme_and_authority(url), split(url)[2]
    return root + (posixpath.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else "."))


def name(url: str) -> str:
    """Return the last component of a URL or path; empty for a root."""
    return posixpath.basename(split(url)[2].rstrip("/"))


def relative(url: str, root: str) -> str:
    """Return the part of ``url`` below ``root``; ArgumentError if it is not below it."""
    head = root.rstrip("/") + "/"
    if not url.startswith(head):
        raise ArgumentError(f"{url!r} is not below {root!r}")
    return url[len(head) :]


def temporary_sibling(url: str) -> str:
    """Return a new temporary name in the same directory.

    It does not contain the final name: TensorBoard reads every file that has ``tfevents`` in its name.
    """
    return join(parent(url), TEMPORARY_PREFIX + secrets.token_hex(8))


def is_temporary(url: str) -> bool:
    """Return True if the last component is a temporary name of this package, which readers skip."""
    return name(url).startswith(TEMPORARY_PREFIX)


def has_temporary_part(name: str) -> bool:
    """Return True if any component of a URL, path or relative name is temporary, so that it is not final."""
    return any(part.startswith(TEMPORARY_PREFIX) for part in name.split("/"))


def mirrored_url(local_path: str) -> str | None:
    """Return the remote URL that a local path mirrors, or None.

    Inside a worker ``/scratch/x/hdfs://host:port/rest`` means ``hdfs://host:port/rest``. The authority is required
    (``hdfs:///rest`` is not embedded: the operating system folds slashes, and a folder would be taken for the host).
    """
    if not is_local(local_path):
        return None
    found = _EMBEDDED.search(split(local_path)[2])
    if not found:
        return None
    scheme, authority, path = found.groups()
    return f"{scheme}://{authority}{path or ''}"
