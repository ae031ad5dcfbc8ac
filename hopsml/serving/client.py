"""Clients of a server: predictions by HTTP with this machine's token, and commands to its supervisor."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hopsml.core import listeners, settings
from hopsml.core.decoding import checked
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, ArgumentTypeError, ServingError, StorageError
from hopsml.serving import definitions, server_records
from hopsml.serving.definitions import ServingFolder
from hopsml.serving.front import CONTROL
from hopsml.serving.messages import Command, SupervisorAnswer, decode_answer, encode_line
from hopsml.serving.server_records import ServerRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray


def find_server(name: str) -> ServerRecord:
    """Return the server of a name.

    Raises:
        ServingNotFound: There is no serving of this name.
        ServingError: The serving is stopped.
    """
    definitions.existing_definition(name)
    record = server_records.read_server_record(name, settings.project_url())
    if record is None:
        raise ServingError(
            f"'{name}' is stopped; start it by hopsml.serving.start({name!r}), or `hopsml serve run {name}`"
        )
    return record


def post_json(record: ServerRecord, path: str, content: Any, timeout_s: float) -> Any:
    """Send JSON by POST, and return the JSON of the answer.

    If the connection fails, the request is repeated once, because another replica may answer.

    Args:
        record: The server.
        path: Path of the URL.
        content: Content of the request, which may contain NumPy arrays.
        timeout_s: Timeout in seconds.

    Raises:
        ArgumentError: The server refuses the request as invalid (400, 404, 413).
        ServingError: Any other failure.
    """
    body = msgspec.json.encode(content, enc_hook=_plain)
    for attempt in (1, 2):
        try:
            status, answer = _post(record, path, body, timeout_s)
            break
        except TimeoutError:
            raise ServingError(
                f"{record.url} did not answer within {timeout_s:g} s; send fewer rows, or use a longer timeout"
            ) from None
        except listeners.ForeignListener as error:
            raise ServingError(str(error)) from None
        except (OSError, http.client.HTTPException) as error:
            if attempt == 2:
                raise ServingError(
                    f"{record.url} does not answer ({type(error).__name__}: {error}); check "
                    f"hopsml.serving.status('{record.name}')"
                ) from error
    try:
        found = checked(msgspec.json.decode)(answer)
    except msgspec.DecodeError:
        found = {"error": answer[:500].decode(errors="replace")}
    if status == 200:
        return found
    text = f"{record.url}{path}: {found.get('error', found) if isinstance(found, dict) else found} (HTTP {status})"
    raise ArgumentError(text) if status in (400, 404, 413) else ServingError(text)


def rows_to_columns(rows: Any) -> Any:
    """Convert rows that are dicts to a dict of lists by input; other values are returned unchanged.

    Raises:
        ArgumentError: The rows have different inputs.
    """
    if not isinstance(rows, (list, tuple)) or not rows or not all(isinstance(row, Mapping) for row in rows):
        return rows
    names = list(rows[0])
    for number, row in enumerate(rows):
        if set(row) != set(names):
            raise ArgumentError(
                f"predict(): row {number} has the inputs {', '.join(map(str, row))}, but row 0 has "
                f"{', '.join(map(str, names))}; all rows must have the same inputs"
            )
    return {name: [row[name] for row in rows] for name in names}


def to_array(value: Any) -> NDArray[Any]:
    """Return an output as an array; ``null`` among numbers becomes NaN."""
    import numpy as np

    found = np.asarray(value)
    if found.dtype == object:
        with contextlib.suppress(TypeError, ValueError):  # texts or bytes
            return np.asarray(value, float)
    return found


def _post(
    record: ServerRecord, path: str, body: bytes, timeout_s: float, token: str | None = None
) -> tuple[int, bytes]:
    """Send one POST request, and return status and body of the answer.

    Raises:
        ForeignListener: The server has ended, and a process of another user listens at its port.
        OSError: Another failure of the connection.
    """
    where = record.url.removeprefix("http://")
    connection = http.client.HTTPConnection(where, timeout=timeout_s)
    try:
        headers = {"content-type": "application/json"}
        if borne := read_token(record) if token is None else token:
            headers["authorization"] = f"Bearer {borne}"
        connection.connect()
        # On YARN other users' processes are expected: containers may run as a user of the cluster's.
        if borne and not record.application.startswith(server_records.YARNS):
            listeners.refuse_foreign(connection.sock, f"the server of '{record.name}'", record.user)
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def read_token(record: ServerRecord) -> str:
    """Return the token for requests to a server; empty if there is none.

    The token is read from this machine's folder or, for a server on a cluster, from its private folder, else from
    ``HOPSML_SERVING_TOKEN``.
    """
    own = ""
    if record.is_on_cluster:
        with contextlib.suppress(StorageError, ArgumentError):  # another user's; the variable may have its token
            granted = server_records.read_launch_access(record.name, settings.project_url(), record.launch)
            own = granted.token if granted is not None else ""
    elif record.is_here:
        own = ServingFolder(Path(record.folder)).read_token()
    return own or SETTINGS.serving_token


def _plain(value: Any) -> Any:
    """Convert NumPy arrays and numbers for JSON."""
    if type(value).__name__ == "NAType":  # pandas.NA, a missing value
        return None
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "to_numpy"):
        raise ArgumentTypeError(
            f"predict(): the request contains a {type(value).__name__}; pass its values in the order of the model's "
            "features, table.to_numpy(), or by column, table.to_dict('list')"
        )
    raise ArgumentTypeError(
        f"predict(): the request contains {value!r:.80}, a {type(value).__name__}; use numbers, text, lists, dicts "
        "and numpy arrays"
    )


def send_driver_command(record: ServerRecord, command: Command, timeout_s: float) -> SupervisorAnswer | None:
    """Send a command to the driver of a serving on a cluster; None if the driver cannot be reached.

    Raises:
        ServingError: The driver does not answer in time, refuses the command, or the serving was restarted.
    """
    granted = server_records.read_launch_access(record.name, settings.project_url(), record.launch)
    if granted is None:
        raise ServingError(
            f"'{record.name}' was restarted during the request, or its tokens were revoked; send the request again"
        )
    try:
        status, answer = _post(record, CONTROL, msgspec.json.encode(command), timeout_s, granted.control)
    except TimeoutError:
        raise ServingError(
            f"the driver at {record.url} did not answer within {timeout_s:g} s; check `hopsml serve logs`"
        ) from None
    except (OSError, http.client.HTTPException):
        return None
    if status != 200:
        raise ServingError(f"the driver at {record.url} refuses the request: {answer[:500].decode(errors='replace')}")
    return decode_answer(answer)


def send_supervisor_command(
    folder: ServingFolder, command: Command, timeout_s: float | None
) -> SupervisorAnswer | None:
    """Send a command to the supervisor of a serving on this machine; None if it is not running or has ended.

    Raises:
        ServingError: The supervisor does not answer in time.
    """
    descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(timeout_s)
            line.connect(f"/proc/self/fd/{descriptor}/{folder.control.name}")  # socket paths have a limit of 107 bytes
            line.sendall(encode_line(command))
            answer = _line_of(line)
    except TimeoutError:
        raise ServingError(
            f"the supervisor in {folder.path} did not answer within {timeout_s or 0:g} s; see its log there"
        ) from None
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return decode_answer(answer) if answer.endswith(b"\n") else None


def _line_of(line: socket.socket) -> bytes:
    """Return one line from a socket, or what arrived before its end."""
    parts = []
    while part := line.recv(65536):
        parts.append(part)
        if part.endswith(b"\n"):
            break
    return b"".join(parts)
