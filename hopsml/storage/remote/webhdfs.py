"""Store of ``webhdfs://`` and ``swebhdfs://`` through HdfsCLI: HDFS over HTTP, through proxies and HttpFS."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from http.cookiejar import DefaultCookiePolicy
from typing import Any, TypeVar

from hopsml.core import delegation_tokens as tokens
from hopsml.core import proxies, redact, settings, trust_store
from hopsml.core.hadoop_http import visible_text
from hopsml.core.spnego import Exchange
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError
from hopsml.storage import urls
from hopsml.storage.filesystem import FileStatus
from hopsml.storage.remote.hadoop import HadoopStore, token_for_web, uses_https_only, web_addresses
from hopsml.storage.remote.store import CHUNK_BYTES

T = TypeVar("T")
# A NameNode on standby, or about to become active, knows no tokens, and refuses them as if they were invalid.
_UNREADY = re.compile(r"InvalidToken: (?:[\w.]+\.)?((?:Standby|Retriable)Exception)")
_DEFAULT_PORTS = {"webhdfs": 9870, "swebhdfs": 9871}


class WebHdfsStore(HadoopStore):
    """HDFS store by WebHDFS.

    The URL names ``host:port`` of a NameNode's web service or of HttpFS, or a name service of the configuration. Each
    call has a separate client: a renewed token is used at once, and no connection outlives its call.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        super().__init__(url, options)
        for logger in ("urllib3", "requests", "hdfs"):  # they log whole addresses, with the token in them
            redact.mask_logger(logger)

    @staticmethod
    def options(url: str) -> dict[str, Any]:
        """Return an empty dict; ArgumentError for HTTP to a NameNode whose web service uses HTTPS only."""
        if urls.split(url)[0] == "webhdfs" and uses_https_only():
            is_https = set(WebHdfsStore.addresses(url)) & set(web_addresses("swebhdfs:///"))
            if is_https or _is_name_service(url):
                raise ArgumentError(
                    f"{url}: the web services of this HDFS use HTTPS only (dfs.http.policy=HTTPS_ONLY); write s{url}"
                )
        return HadoopStore.options(url)

    @staticmethod
    def addresses(url: str) -> list[str]:
        """Return ``host:port`` of each web service behind the URL."""
        scheme, authority, _ = urls.split(url)
        if _is_name_service(url):
            return web_addresses(url)
        return [authority if ":" in authority else f"{authority}:{_DEFAULT_PORTS[scheme]}"]

    @staticmethod
    def proxy_note(url: str) -> str:
        """Return the part of an error message that names the proxy of requests to the web services."""
        kind = "https" if urls.split(url)[0] == "swebhdfs" else "http"
        found = [proxies.proxy_hint(f"{kind}://{one}", by_requests=True) for one in WebHdfsStore.addresses(url)]
        return next((text for text in found if text), "")

    def status(self, url: str) -> FileStatus:
        """Return the attributes of one file or directory; FileNotFoundError if there is none."""
        from hdfs import HdfsError

        try:
            return _status(url, self._call(lambda client: client.status(_path(url))))
        except HdfsError as error:
            if error.exception == "FileNotFoundException":
                raise FileNotFoundError(url) from error
            raise

    def list_dir(self, url: str) -> list[FileStatus]:
        """Return the entries of a directory by name and attributes."""
        found = self._call(lambda client: client.list(_path(url), status=True))
        return [_status(urls.join(url, name), facts) for name, facts in found]

    def read(self, url: str, offset: int, length: int | None) -> tuple[int, Iterator[bytes]]:
        """Return the number of bytes that the NameNode knows, and the bytes in pieces.

        Raises FileExistsError for a directory.
        """
        found = self.status(url)
        if found.is_dir:
            raise FileExistsError(f"{url} is a directory, not a file")
        there = max(0, found.length - offset)
        wanted = there if length is None else min(length, there)
        return wanted, self._pieces(url, offset, wanted)

    def write(self, url: str, pieces: Iterator[bytes], overwrite: bool) -> None:
        """Write a file in one request; the NameNode creates missing parents."""
        mode = f"{self._new_file_mode(url):o}"
        self._call(lambda client: client.write(_path(url), data=pieces, overwrite=overwrite, permission=mode))

    def append(self, url: str, pieces: Iterator[bytes]) -> None:
        """Append to a file, which is created if missing."""
        try:
            self.status(url)
        except FileNotFoundError:
            self.write(url, pieces, overwrite=True)
        else:
            self._call(lambda client: client.write(_path(url), data=pieces, append=True))

    def make_dirs(self, url: str, mode: int | None) -> None:
        """Create a directory with its parents; ``mode`` applies to the last one only."""
        if mode is not None:
            self.make_dirs(urls.parent(url), None)  # parents must not get the mode as well
        text = f"{self._new_folder_mode(url) if mode is None else mode:o}"
        self._call(lambda client: client.makedirs(_path(url), permission=text))

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        """Rename atomically, with the option that prevents a move INTO an existing directory."""
        # Without the option WebHDFS moves INTO an existing directory, and only returns "false" on failure.
        option = "OVERWRITE" if overwrite else "NONE"
        self._call(lambda client: client._rename(_path(source), destination=_path(target), renameoptions=option))

    def delete(self, url: str, recursive: bool) -> bool:
        """Delete a file or directory; False if there was none."""
        return bool(self._call(lambda client: client.delete(_path(url), recursive=recursive)))

    def set_permission(self, url: str, mode: int) -> None:
        """Change the permission bits to ``mode``, as in ``0o755``."""
        self._call(lambda client: client.set_permission(_path(url), f"{mode:o}"))

    def set_owner(self, url: str, owner: str | None, group: str | None) -> None:
        """Change owner and group by name; None leaves one unchanged."""
        self._call(lambda client: client.set_owner(_path(url), owner, group))

    def _pieces(self, url: str, offset: int, length: int) -> Iterator[bytes]:
        if not length:
            return
        with self._client() as client, client.read(_path(url), offset=offset, length=length) as source:
            while piece := source.read(CHUNK_BYTES):
                yield piece

    def _call(self, call: Callable[[Any], T]) -> T:
        with self._client() as client:
            return call(client)

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        """Yield a client that authenticates by a token if there is one, else by Kerberos or the user's name."""
        import hdfs

        kind = "https" if self._scheme == "swebhdfs" else "http"
        # HdfsCLI's form: all NameNodes, joined by semicolons.
        addresses = self.addresses(f"{self._scheme}://{self._authority}")
        address = ";".join(f"{kind}://{one}" for one in addresses)
        # The time is divided among several servers, so that one that does not respond does not use it up.
        part_s = SETTINGS.storage_timeout_s / (len(addresses) + 1) if len(addresses) > 1 else None
        # All addresses belong to one HDFS.
        token = token_for_web(addresses[0], tokens.from_environment())
        with _session(kind) as session:
            session.trust_env = not all(proxies.is_loopback(proxies.host_of(one)) for one in addresses)
            if token:
                redact.register("delegation_token", token.as_text())
                yield hdfs.TokenClient(address, token.as_text(), session=session, timeout=part_s)
            elif settings.is_kerberized():
                proxy_user = os.environ.get("HADOOP_PROXY_USER")
                yield hdfs.Client(address, proxy=proxy_user, session=session, timeout=part_s)
            else:
                yield hdfs.InsecureClient(address, user=settings.user_name(), session=session, timeout=part_s)


def _session(kind: str) -> Any:
    """Return a session of ``requests`` that authenticates by Kerberos where a server asks for it.

    Args:
        kind: http or https; for https the certificates of Hadoop's configuration are trusted.
    """
    import requests
    from hdfs import HdfsError
    from requests.adapters import HTTPAdapter

    context = trust_store.client_context() if kind == "https" else None

    class Adapter(HTTPAdapter):
        """Sender of single requests: each redirect is another one, to which no header of the first server goes."""

        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
            super().init_poolmanager(*arguments, ssl_context=context, **options)

        def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
            return super().proxy_manager_for(*arguments, ssl_context=context, **options)

        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            send = super().send
            is_repeatable = request.body is None or isinstance(request.body, (bytes, str))
            exchange = Exchange(request.url, SETTINGS.storage_timeout_s, is_repeatable=is_repeatable)
            headers: dict[str, str] | None = exchange.headers()
            try:
                while headers is not None:
                    sent = request.copy()
                    sent.headers.update(headers)
                    answer = send(sent, *arguments, **options)
                    fields = answer.raw.headers
                    headers = exchange.answered(
                        answer.status_code, fields.getlist("WWW-Authenticate"), fields.getlist("Set-Cookie")
                    )
                    if headers is not None:
                        answer.close()
                        if not is_repeatable:
                            raise ConnectionError(f"{request.url.partition('?')[0]} refused the upload: send it again")
            finally:
                exchange.close()
            answer.request = request  # without the headers
            if answer.status_code in (401, 403) and (found := _UNREADY.search(answer.text)):
                answer.close()
                # upon which HdfsCLI asks the next NameNode
                raise requests.exceptions.ConnectionError(f"{request.url.partition('?')[0]}: {found[1]}")
            if answer.status_code >= 400 and "html" in answer.headers.get("Content-Type", ""):
                text = visible_text(answer.text)
                answer.close()
                raise HdfsError(f"HTTP {answer.status_code} {text}")
            return answer

    session = requests.Session()
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # ``Exchange`` keeps those of Hadoop
    for scheme in ("http://", "https://"):
        session.mount(scheme, Adapter())
    return session


def _is_name_service(url: str) -> bool:
    """Return True if the configuration, and not the URL, has the addresses of the NameNodes."""
    authority = urls.split(url)[1]
    return not authority or f"dfs.ha.namenodes.{authority}" in settings.hadoop_settings()


def _path(url: str) -> str:
    return urls.split(url)[2]


def _status(url: str, facts: dict[str, Any]) -> FileStatus:
    is_dir = facts["type"] == "DIRECTORY"
    return FileStatus(
        url=url,
        is_dir=is_dir,
        length=0 if is_dir else facts["length"],
        modified_s=facts["modificationTime"] / 1000,
        owner=facts["owner"],
        group=facts["group"],
        permission=int(facts["permission"], 8),
        replication=facts["replication"],
        block_size=facts["blockSize"],
        accessed_s=facts["accessTime"] / 1000,
    )
