"""Conversion of errors of storage clients into ``StorageError`` classes, by type names and texts; no side effects.

Clients of HDFS include the cause as the name of a Java class somewhere in the text, which is matched here.
"""

from __future__ import annotations

import errno
import re

from hopsml.core import redact
from hopsml.errors import (
    PathExists,
    PathNotFound,
    PermissionRefused,
    QuotaExceeded,
    SafeMode,
    StorageError,
    StorageTimeout,
    StorageUnavailable,
)

_TOKEN_ENDED = "the delegation token is expired or unknown"
_NO_CREDENTIAL = "no valid Kerberos ticket or token"
_ELSEWHERE = ", or write elsewhere (HOPSML_PROJECT_URL)"  # of the actions that write
_READING = ("look at", "list", "read", "measure")
# (pattern, error, meaning and remedy); the first match wins
_CAUSES: list[tuple[str, type[StorageError], str]] = [
    (
        r"the trusted certificates cannot be read",
        StorageError,
        "no certificate can be verified; correct HOPSML_CA_BUNDLE, or the truststore of ssl-client.xml",
    ),
    (
        r"HOPSML_CA_BUNDLE|/webhdfs/v1.*certificate verify failed",
        StorageError,
        "the certificate of the web service is not trusted; set HOPSML_CA_BUNDLE to a PEM file with it or with that of its "
        "authority, or configure the truststore in ssl-client.xml",
    ),
    (
        r"/webhdfs/v1.*WRONG_VERSION_NUMBER",
        StorageError,
        "the web service does not use TLS at this address; write webhdfs://, or the port of HTTPS",
    ),
    (
        r"BadStatusLine\('\\x15\\x03",
        StorageError,
        "the web service uses TLS at this address; write swebhdfs://",
    ),
    (
        r"SafeModeException|is in safe mode",
        SafeMode,
        "the NameNode is in safe mode; try again later, or see `hdfs dfsadmin -safemode get`",
    ),
    (
        r"DSQuotaExceeded",
        QuotaExceeded,
        "the space quota is used up (whole blocks times replication count); delete files or raise it with "
        "`hdfs dfsadmin -setSpaceQuota`",
    ),
    (
        r"NSQuotaExceeded|QuotaByStorageType|QuotaExceeded",
        QuotaExceeded,
        "the quota is used up; delete files or raise it with `hdfs dfsadmin -setQuota`",
    ),
    (
        r"InvalidToken|Token has expired|token .* (expired|can't be found)",
        PermissionRefused,
        f"{_TOKEN_ENDED}; give this process a new one (HADOOP_TOKEN_FILE_LOCATION)",
    ),
    (
        r"[Cc]annot contact any KDC|[Cc]annot find KDC|no KDC answered",
        StorageUnavailable,
        "no KDC answers; check that the KDC of krb5.conf (KRB5_CONFIG) is running and reachable",
    ),
    (
        r"GSS_S_|GSSAPIError|Authentication failure|SaslException|SASL|requires Kerberos",
        PermissionRefused,
        f"{_NO_CREDENTIAL}; run `kinit`, or set HADOOP_TOKEN_FILE_LOCATION",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        QuotaExceeded,
        "the disk or the quota is full; delete files or choose another disk",
    ),
    (
        r"Read-only file system",
        StorageError,
        "the disk is mounted read-only, possibly after an error (see dmesg); use another disk",
    ),
    (
        r"AccessControlException|Permission denied|AccessDenied|EPERM|EACCES",
        PermissionRefused,
        "this user lacks the permission; ask the owner for it" + _ELSEWHERE,
    ),
    (
        r"StandbyException|state standby",
        StorageUnavailable,
        "only a standby NameNode answered; wait for the end of a failover, or check that one NameNode is active",
    ),
    (
        r"AlreadyBeingCreated|current lease holder|RecoveryInProgress",
        StorageUnavailable,
        "another writer holds this file open; write it again under a new name, or wait until its lease ends",
    ),
    (r"FileAlreadyExists|AlreadyExists|already exists|File exists", PathExists, "it already exists"),
    (
        r"not empty|non empty|NotEmptyDirectory|ENOTEMPTY",
        PathExists,
        "the directory is not empty; delete it recursively or choose another name",
    ),
    (
        r"could only be written to 0|no (live )?datanodes?|All DataNodes failed|BlockMissing"
        r"|NoLocationsRemaining|Excluded datanodes",
        StorageUnavailable,
        "no DataNode could serve the file; check `hdfs dfsadmin -report`",
    ),
    (
        r"No NameNode hosts found|No fs\.defaultFS|UrlParseError|Name or service not known|failed to lookup"
        r"|NameResolutionError|getaddrinfo|UnknownHost",
        StorageUnavailable,
        "the address is unknown; correct the URL, or set HADOOP_CONF_DIR to the folder with the cluster's "
        "configuration",
    ),
    (
        r"[Cc]onnection refused|ConnectionError|Connection reset|Connection aborted|RPC listener disconnected"
        r"|disconnected|Broken pipe|IncompleteRead|RemoteDisconnected|No data received|ConnectionRefused"
        r"|RetriableException|unexpected end of file|early eof|timed? ?out",
        StorageUnavailable,
        "no service answers at this address, or the connection broke; check that the service is running and reachable",
    ),
    (
        r"FileNotFound|No such file|does not exist|not found|NotFoundError|NoSuchKey|Path is not a file"
        r"|is not a directory",
        PathNotFound,
        "there is no such file or directory",
    ),
]
_BY_TYPE: dict[str, str] = {  # exception type -> equivalent text for the patterns above
    "FileNotFoundError": "FileNotFound",
    "FileExistsError": "FileAlreadyExists",
    "PermissionError": "AccessControlException",
    "ConnectionRefusedError": "Connection refused",
    "ReadTimeout": "timed out",
    "ConnectTimeout": "timed out",
    "ReadTimeoutError": "timed out",
}
_ERRNO_TYPES: dict[int, type[StorageError]] = {
    errno.ENOENT: PathNotFound,
    errno.ENOTDIR: PathNotFound,
    errno.EISDIR: PathExists,
    errno.EEXIST: PathExists,
    errno.ENOTEMPTY: PathExists,
    errno.EACCES: PermissionRefused,
    errno.EPERM: PermissionRefused,
    errno.EROFS: StorageError,  # permissions do not help
    errno.ENOSPC: QuotaExceeded,
    errno.EDQUOT: QuotaExceeded,
    errno.ETIMEDOUT: StorageTimeout,
}
_REMEDIES_BY_ERRNO: dict[int, str] = {
    errno.ENOTEMPTY: "delete it recursively",
    errno.EROFS: "the disk is mounted read-only, possibly after an error (see dmesg); use another disk",
}
_REMEDIES: dict[type[StorageError], str] = {
    PermissionRefused: "this user lacks the permission; ask the owner for it" + _ELSEWHERE,
    QuotaExceeded: "the disk or the quota is full; delete files or choose another disk",
    PathExists: "choose another name, or allow overwriting",
}


MAKE_DIRECTORY = "make directory"


def from_text(action: str, path: str, type_name: str, text: str) -> StorageError:
    """Return the error for a failed remote ``action``, such as "write", on ``path``.

    Args:
        action: verb for the message.
        path: path or URL for the message.
        type_name: type name of the client's error.
        text: text of the client's error.
    """
    text = redact.text(text)
    first_line = _first_line(text)
    if type_name == "NotADirectoryError":
        return PathNotFound(f"cannot {action} {path}: it is not a directory", path)
    if type_name == "NotImplementedError":
        return StorageError(f"cannot {action} {path}: {first_line}", path)
    hinted = f"{_BY_TYPE.get(type_name, '')} {type_name} {text}"
    if type_name in ("FileExistsError", "FileNotFoundError"):  # certain; the text may quote other classes
        lease = re.search(r"current lease holder|AlreadyBeingCreated", text)
        hinted = text if lease else _BY_TYPE[type_name]
    for pattern, kind, meaning in _CAUSES:
        if re.search(pattern, hinted):
            meaning = meaning.removesuffix(_ELSEWHERE) if action in _READING else meaning
            return kind(f"cannot {action} {path}: {meaning} ({first_line})", path)
    return StorageError(f"cannot {action} {path}: {type_name}: {first_line}", path)


def from_os_error(action: str, path: str, error: OSError) -> StorageError:
    """Return the error for a failed local call, according to its errno."""
    kind = _ERRNO_TYPES.get(error.errno or 0, StorageError)
    remedy = _REMEDIES_BY_ERRNO.get(error.errno or 0) or _REMEDIES.get(kind)
    if action == MAKE_DIRECTORY and kind in (PathNotFound, PathExists):
        remedy = "no folder can be created there; choose another place (HOPSML_PROJECT_URL for a project)"
    if remedy and action in _READING:
        remedy = remedy.removesuffix(_ELSEWHERE)
    reason = error.strerror or str(error) or type(error).__name__
    return kind(f"cannot {action} {path}: {reason}" + (f"; {remedy}" if remedy else ""), path)


def is_transient(error: BaseException) -> bool:
    """Return True if a later attempt may succeed without intervention.

    That includes the end of a token or ticket: the driver sends new ones to its agents. A minute before its end, clients
    no longer use a token, and find no credential.
    """
    if isinstance(error, PermissionRefused):
        return any(text in str(error) for text in (_TOKEN_ENDED, _NO_CREDENTIAL))
    return isinstance(error, (SafeMode, StorageUnavailable, StorageTimeout))


def _first_line(text: str) -> str:
    """Return the part before the Java stack trace, in one line."""
    head = re.split(r"\\n|\n", text.strip(), maxsplit=1)[0].strip()
    return head[:300] or "no further information"
