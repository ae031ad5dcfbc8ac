"""Files of data sets that jobs name, as far as the server may show them: below stores that its administrator has named.

The server reads with its own rights. Therefore a data set is readable only below one of these stores, and files of a
local one only if they really are in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from hopsml.errors import PermissionRefused
from hopsml.service.browse import files
from hopsml.service.browse.files import Entry
from hopsml.storage import trust, urls
from hopsml.storage.filesystem import for_url

FOLDER = "Datasets"  # folder of the project whose data sets can always be looked at
MOST_FOLDERS, MOST_FILES = 200, 20_000  # that are counted for the size of a data set


class DatasetSize(msgspec.Struct, frozen=True):
    """Size of a data set.

    Attributes:
        files: Number of its files.
        bytes: Length of all these files.
        is_complete: False if it has more files than were counted.
    """

    files: int
    bytes: int
    is_complete: bool


def readable_url(url: str, stores: Sequence[str]) -> str:
    """Return the URL under which the server reads a data set.

    Args:
        url: URL or absolute path, as a job file names it.
        stores: URLs below which data sets may be read.

    Raises:
        PermissionRefused: The data set is not below one of them.
    """
    located = url.rstrip("/") if urls.scheme_and_authority(url) else f"file://{url.rstrip('/')}"
    parts = urls.split(located)[2].split("/")
    for store in stores:
        if (located == store or located.startswith(store + "/")) and not {".", ".."} & set(parts):
            trust.confine_project(store)
            return located
    raise PermissionRefused(
        f"files of {url} are not shown here, as the server would read them with its own rights; copy the data set below "
        f"{' or '.join(stores)}, or ask the administrator of the service to allow its folder (hopsml server --datasets URL)"
    )


def located(url: str, path: str) -> tuple[str, list[Entry]]:
    """Return the URL of a file or folder of a data set, and the entries of a folder.

    A data set that is one file appears as a folder with this file.

    Args:
        url: URL of the data set.
        path: Path in it; "" for the data set itself.

    Raises:
        ArgumentError: The path leads out of the data set.
        PathNotFound: There is no such file.
    """
    status = for_url(url).status(url)
    if status.is_dir:
        found = files.path_below(url, path)
        return found, files.entries(found)
    own = urls.name(url)
    if not path:
        return urls.parent(url), [Entry(own, False, status.length, status.modified_s)]
    return files.path_below(urls.parent(url), path if path == own else own + "/" + path), []


def size(url: str) -> DatasetSize:
    """Return the size of a data set, of which at most ``MOST_FOLDERS`` and ``MOST_FILES`` are counted."""
    status = for_url(url).status(url)
    if not status.is_dir:
        return DatasetSize(1, status.length, True)
    waiting, folders, count, total = deque([url]), 0, 0, 0
    while waiting:
        if folders == MOST_FOLDERS or count >= MOST_FILES:
            return DatasetSize(count, total, False)
        folder, folders = waiting.popleft(), folders + 1
        for entry in for_url(folder).list_dir(folder):
            if entry.is_dir:
                waiting.append(entry.url)
            else:
                count, total = count + 1, total + entry.length
    return DatasetSize(count, total, True)
