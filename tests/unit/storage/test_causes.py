"""Tests of the mapping from clients' messages to errors; the texts are from real servers."""

from __future__ import annotations

import errno
import os

import pytest

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
from hopsml.storage import causes

pytestmark = pytest.mark.fast

ACCESS = (
    'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied: user=joe, '
    'access=WRITE, inode=\\"/r\\":root:supergroup:drwxr-xr-x\\n\\tat org.apache.hadoop...")'
)
UNREADABLE_BUNDLE = (
    "/ca.pem: the trusted certificates cannot be read ([Errno 2] No such file or directory: '/ca.pem'); set "
    "HOPSML_CA_BUNDLE to a PEM file with the certificate of the service or of its authority"
)
UNTRUSTED = (
    "https://nn:9871/jmx: self-signed certificate; set HOPSML_CA_BUNDLE to a PEM file with the certificate of the service "
    "or of its authority"
)
UNTRUSTED_WEBHDFS = (
    "HTTPSConnectionPool(host='nn', port=9871): Max retries exceeded with url: /webhdfs/v1/x?op=GETFILESTATUS (Caused by "
    "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed "
    "certificate (_ssl.c:1006)')))"
)
PLAIN_SERVER = (
    "HTTPSConnectionPool(host='nn', port=9870): Max retries exceeded with url: /webhdfs/v1/x?op=GETFILESTATUS (Caused by "
    "SSLError(SSLError(1, '[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)')))"
)
TLS_SERVER = "('Connection aborted.', BadStatusLine('\\x15\\x03\\x03\\x00\\x02\\x02P'))"


@pytest.mark.parametrize(
    ("kind", "text", "remedy"),
    [
        ("TrustError", UNREADABLE_BUNDLE, "correct HOPSML_CA_BUNDLE, or the truststore of ssl-client.xml"),
        ("PermissionError", UNTRUSTED, "set HOPSML_CA_BUNDLE to a PEM file"),
        ("SSLError", UNTRUSTED_WEBHDFS, "set HOPSML_CA_BUNDLE to a PEM file"),
        ("SSLError", PLAIN_SERVER, "write webhdfs://, or the port of HTTPS"),
        ("ConnectionError", TLS_SERVER, "write swebhdfs://"),
    ],
)
def test_error_of_tls_names_the_setting_or_scheme(kind: str, text: str, remedy: str) -> None:
    message = str(causes.from_text("read", "swebhdfs://nn/x", kind, text))
    assert remedy in message.partition(" (")[0] and "permission" not in message


@pytest.mark.parametrize(
    ("kind", "text", "error"),
    [
        ("RuntimeError", ACCESS, PermissionRefused),
        (
            "RuntimeError",
            'RPCError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create"',
            SafeMode,
        ),
        ("RetriableException", "Cannot create /x. Name node is in safe mode.\nIt was turned on", SafeMode),
        (
            "RuntimeError",
            'RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The',
            QuotaExceeded,
        ),
        ("NSQuotaExceededException", "The NameSpace quota of directory /r is exceeded", QuotaExceeded),
        (
            "RuntimeError",
            'FatalRPCError("org...SecretManager$InvalidToken", "token (..) is expired"',
            PermissionRefused,
        ),
        ("RuntimeError", "GSSAPIError(GssapiError { maj: GSS_S_NO_CRED })", PermissionRefused),
        ("HdfsError", "Authentication failure. Check your credentials.", PermissionRefused),
        ("StandbyException", "Operation category READ is not supported in state standby", StorageUnavailable),
        ("OSError", "Connection refused (os error 111)", StorageUnavailable),
        ("OSError", "RPC listener disconnected", StorageUnavailable),
        ("OSError", "No data received for 60000ms", StorageUnavailable),
        ("ReadTimeout", "HTTPConnectionPool(host='h', port=1): Read", StorageUnavailable),
        ("RuntimeError", 'InvalidArgument("No NameNode hosts found")', StorageUnavailable),
        ("RuntimeError", "DataTransferError: All DataNodes failed", StorageUnavailable),
        ("EOFError", "unexpected end of file: 0 of 10 bytes", StorageUnavailable),
        ("FileNotFoundError", "/p/nope", PathNotFound),
        (
            "FileNotFoundError",
            "File does not exist: /x\n\tat org.apache...AccessControlException",
            PathNotFound,
        ),
        ("FileExistsError", "/p/a/f0 for client 127.0.0.1 already exists\n\tat org.apache", PathExists),
        (
            "FileExistsError",
            "Failed to APPEND_FILE /x: c is already the current lease holder.",
            StorageUnavailable,
        ),
        (
            "RuntimeError",
            'RPCError("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", "`/p is non empty',
            PathExists,
        ),
        ("NotADirectoryError", "/p", PathNotFound),
        ("TrustError", UNREADABLE_BUNDLE, StorageError),
        ("PermissionError", UNTRUSTED, StorageError),
        ("SSLError", UNTRUSTED_WEBHDFS, StorageError),
        ("NotImplementedError", "this store has no permissions", StorageError),
        ("ValueError", "something new", StorageError),
    ],
)
def test_remote_error_text_maps_to_a_storage_error(kind: str, text: str, error: type[StorageError]) -> None:
    found = causes.from_text("write", "hdfs://nn/x", kind, text)
    assert type(found) is error
    assert found.path == "hdfs://nn/x"
    assert str(found).startswith("cannot write hdfs://nn/x: ")
    assert "\tat " not in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOENT, PathNotFound),
        (errno.ENOSPC, QuotaExceeded),
        (errno.EACCES, PermissionRefused),
        (errno.EROFS, StorageError),
        (errno.ENOTEMPTY, PathExists),
        (errno.EIO, StorageError),
    ],
)
def test_local_errno_maps_to_a_storage_error(number: int, error: type[StorageError]) -> None:
    found = causes.from_os_error("write", "/x", OSError(number, os.strerror(number)))
    assert type(found) is error
    assert os.strerror(number) in str(found)


def test_only_temporary_causes_are_transient() -> None:
    assert all(causes.is_transient(kind("x")) for kind in (SafeMode, StorageUnavailable, StorageTimeout))
    assert not any(causes.is_transient(kind("x")) for kind in (QuotaExceeded, PermissionRefused, PathExists))
    for text in (
        "SecretManager$InvalidToken: token (..) is expired",
        "GSSAPIError(GssapiError { maj: GSS_S_NO_CRED })",
    ):
        assert causes.is_transient(causes.from_text("read", "hdfs://nn/x", "RuntimeError", text)), "new tokens may come"
    assert not causes.is_transient(causes.from_text("read", "hdfs://nn/x", "RuntimeError", ACCESS))


@pytest.mark.parametrize("action", ["read", "list", "look at", "measure"])
def test_refused_read_has_no_remedy_for_writing(action: str) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    for error in (causes.from_text(action, "/r", "RuntimeError", ACCESS), causes.from_os_error(action, "/r", denied)):
        assert "ask the owner for it" in str(error) and "write elsewhere" not in str(error)
    for error in (causes.from_text("write", "/r", "RuntimeError", ACCESS), causes.from_os_error("write", "/r", denied)):
        assert "or write elsewhere (HOPSML_PROJECT_URL)" in str(error)
