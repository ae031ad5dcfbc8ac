"""Client of the ResourceManager's REST API: state of applications, finding them by tag, ending them; nodes."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hopsml.core import settings
from hopsml.core.decoding import MALFORMED
from hopsml.core.hadoop_http import AccessError, Answer, NoAnswer, request
from hopsml.core.spnego import refusal_remedy
from hopsml.core.states import Lifecycle
from hopsml.errors import ApplicationNotFound, ArgumentError, ClusterError, ClusterUnavailable

TIMEOUT_S = 10.0
OVER = ("FINISHED", "FAILED", "KILLED")  # final states of YARN
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_ID = re.compile(r"application_\d+_\d+")


@dataclass(frozen=True)
class YarnApplication:
    """State of one application in the ResourceManager; ``state`` and ``final_status`` are YARN's values.

    Attributes:
        state: NEW, NEW_SAVING, SUBMITTED, ACCEPTED, RUNNING, FINISHED, FAILED, KILLED.
        final_status: UNDEFINED until the end, then SUCCEEDED, FAILED or KILLED.
        started_s: seconds since 1970, 0 for none.
        finished_s: seconds since 1970, 0 for none.
    """

    id: str
    name: str
    state: str
    final_status: str
    diagnostics: str = ""
    user: str = ""
    queue: str = ""
    am_log_url: str = ""  # the NodeManager's page with the log files of the application master's container
    tags: tuple[str, ...] = ()
    started_s: float = 0.0
    finished_s: float = 0.0
    containers: int = 0  # running now, the driver's among them

    @property
    def is_final(self) -> bool:
        """True if it has finished, failed or been killed, so that its state is final."""
        return self.state in OVER

    @property
    def lifecycle(self) -> Lifecycle:
        """State in hopsml's terms: STARTING until the driver runs, STOPPED if it was killed from outside."""
        if not self.is_final:
            return Lifecycle.RUNNING if self.state == "RUNNING" else Lifecycle.STARTING
        if "KILLED" in (self.state, self.final_status):
            return Lifecycle.STOPPED
        return Lifecycle.FINISHED if self.succeeded else Lifecycle.FAILED

    @property
    def succeeded(self) -> bool:
        """True if it has ended with the final status SUCCEEDED."""
        return self.is_final and self.final_status == "SUCCEEDED"

    @classmethod
    def from_json(cls, app: Mapping[str, Any]) -> YarnApplication:
        """Create the state from an ``app`` object of the ResourceManager's REST API."""
        return cls(
            id=str(app["id"]),
            name=str(app.get("name") or ""),
            state=str(app["state"]),
            final_status=str(app.get("finalStatus") or "UNDEFINED"),
            diagnostics=str(app.get("diagnostics") or "").strip(),
            user=str(app.get("user") or ""),
            queue=str(app.get("queue") or ""),
            am_log_url=str(app.get("amContainerLogs") or ""),
            tags=tuple(tag for tag in str(app.get("applicationTags") or "").split(",") if tag),
            started_s=float(app.get("startedTime") or 0) / 1000,
            finished_s=float(app.get("finishedTime") or 0) / 1000,
            containers=max(0, int(app.get("runningContainers") or 0)),
        )


@dataclass(frozen=True)
class YarnNode:
    """State of a NodeManager in the ResourceManager.

    Attributes:
        name: host and port.
        used_cores: used by all containers, as ``used_memory_mib`` and ``used_gpus``.
        label: its partition.
    """

    name: str
    state: str
    cores: int
    memory_mib: int
    gpus: int = 0
    used_cores: int = 0
    used_memory_mib: int = 0
    used_gpus: int = 0
    label: str = ""

    @property
    def host(self) -> str:
        """Hostname that its containers find in ``NM_HOST``."""
        return self.name.rpartition(":")[0] or self.name

    @property
    def accepts_containers(self) -> bool:
        """True if it accepts new containers."""
        return self.state == "RUNNING"

    @property
    def is_decommissioning(self) -> bool:
        """True if it is being decommissioned gracefully: it accepts no new containers, and existing ones continue."""
        return self.state == "DECOMMISSIONING"

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> YarnNode:
        """Create the state from a ``node`` object of the ResourceManager's REST API."""
        used_mib, used_cores = int(node.get("usedMemoryMB") or 0), int(node.get("usedVirtualCores") or 0)
        labels = node.get("nodeLabels") or []
        return cls(
            name=str(node["id"]),
            state=str(node["state"]),
            cores=used_cores + int(node.get("availableVirtualCores") or 0),
            memory_mib=used_mib + int(node.get("availMemoryMB") or 0),
            gpus=_gpus(node.get("totalResource")),
            used_cores=used_cores,
            used_memory_mib=used_mib,
            used_gpus=_gpus(node.get("usedResource")),
            label=str(labels[0]) if labels else "",
        )


def _gpus(resource: Any) -> int:
    """Return the number of GPUs (yarn.io/gpu) in a ``resource`` object."""
    listed = ((resource or {}).get("resourceInformations") or {}).get("resourceInformation") or []
    return sum(int(each.get("value") or 0) for each in listed if each.get("name") == "yarn.io/gpu")


@dataclass(frozen=True)
class ResourceManager:
    """Client of the ResourceManagers, of which there may be two (high availability); the active one answers.

    Every call ends within ``timeout_s`` seconds per address. Calls raise ClusterUnavailable if none answers,
    ApplicationNotFound, and ClusterError with YARN's message if it refuses.
    """

    addresses: tuple[str, ...]  # host:port of the web services
    scheme: str = "http"
    timeout_s: float = TIMEOUT_S
    user: str = ""  # user sent with requests where YARN's web services trust the caller (no Kerberos)

    @classmethod
    def from_environment(cls, timeout_s: float = TIMEOUT_S) -> ResourceManager:
        """Return a client configured by yarn-site.xml in $YARN_CONF_DIR or $HADOOP_CONF_DIR.

        Raises:
            ArgumentError: if that names no ResourceManager.
        """
        scheme, addresses = rm_web_addresses(settings.yarn_settings())
        if not addresses:
            raise ArgumentError(
                f"no ResourceManager is configured (HADOOP_CONF_DIR={settings.hadoop_conf_dir() or ''}); set "
                "HADOOP_CONF_DIR to the folder with the cluster's yarn-site.xml"
            )
        return cls(addresses, scheme, timeout_s, settings.user_name())

    def application(self, application_id: str) -> YarnApplication:
        """Return the state of one application.

        Raises ApplicationNotFound, ClusterUnavailable, ClusterError.
        """
        answer = self._get(f"apps/{checked_application_id(application_id)}")
        with _as_documented():
            return YarnApplication.from_json(answer["app"])

    def find_by_tag(self, tag: str) -> list[YarnApplication]:
        """Return the applications with this tag (``spark.yarn.tags``), the newest first.

        YARN stores tags in lower case.
        """
        wanted = tag.lower()
        query = urllib.parse.urlencode({"applicationTags": wanted})
        answer = self._get(f"apps?{query}")
        with _as_documented():
            found = [YarnApplication.from_json(app) for app in (answer.get("apps") or {}).get("app", [])]
        return sorted((app for app in found if wanted in app.tags), key=lambda app: app.started_s, reverse=True)

    def nodes(self) -> list[YarnNode]:
        """Return all nodes that it lists, including those that are lost or leaving."""
        answer = self._get("nodes")
        with _as_documented():
            return [YarnNode.from_json(node) for node in (answer.get("nodes") or {}).get("node", [])]

    def kill(self, application_id: str) -> None:
        """Request the end of an application, which ``application`` shows later; one that has ended is unchanged."""
        path = f"apps/{checked_application_id(application_id)}/state"
        self._call(path, method="PUT", body=json.dumps({"state": "KILLED"}).encode())

    def _get(self, path: str) -> Any:
        return self._call(path)

    def _call(self, path: str, *, method: str = "GET", body: bytes | None = None) -> Any:
        """Return the answer of the first address that is an active ResourceManager.

        One that cannot be trusted, or whose filter refuses the ticket, does not hide the other.
        """
        problems, refusals = list[str](), list[ClusterError]()
        if self.user:  # where YARN has access lists, anonymous users see less of an application
            path += f"{'&' if '?' in path else '?'}{urllib.parse.urlencode({'user.name': self.user})}"
        for address in self.addresses:
            url = f"{self.scheme}://{address}/ws/v1/cluster/{path}"
            try:
                answer = request(url, self.timeout_s, method=method, body=body, accept="application/json")
            except AccessError as error:
                problems.append(str(error))
                refusals.append(ClusterError(f"the ResourceManager cannot be asked: {error}"))
                continue
            except NoAnswer as error:
                problems.append(str(error))
                continue
            if answer.status in (307, 502, 503, 504) or not _is_json(answer):
                if answer.status in (401, 403):
                    refusals.append(_refused(address, path, answer))
                problems.append(f"{address}: {_no_service(answer)}")
                continue
            if answer.status >= 400:
                raise _refused(address, path, answer)
            with _as_documented(address):
                return json.loads(answer.body) if answer.body else {}
        if problems and len(refusals) == len(problems):
            raise refusals[0]
        raise ClusterUnavailable(
            f"no ResourceManager answers: {'; '.join(problems)}; start it, or correct "
            "yarn.resourcemanager.webapp.address in the yarn-site.xml of HADOOP_CONF_DIR"
        )


@contextlib.contextmanager
def _as_documented(address: str = "") -> Iterator[None]:
    """Raise ClusterError where an answer is not as YARN's documentation has it, whatever it is."""
    try:
        yield
    except MALFORMED as error:
        who = f"the ResourceManager {address}".rstrip()
        raise ClusterError(
            f"the server at {who} is not a ResourceManager: {type(error).__name__}: {str(error)[:200]}; correct "
            "yarn.resourcemanager.webapp.address in the yarn-site.xml of HADOOP_CONF_DIR"
        ) from error


def rm_web_addresses(known: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the scheme and the ``host:port`` of each ResourceManager's web service in a configuration. Pure.

    There are none if the configuration names no ResourceManager: the default, 0.0.0.0, is no address of one.
    """
    https = known.get("yarn.http.policy", "").upper() == "HTTPS_ONLY"
    key, port = ("webapp.https.address", 8090) if https else ("webapp.address", 8088)
    ids = [part.strip() for part in known.get("yarn.resourcemanager.ha.rm-ids", "").split(",") if part.strip()]
    found = []
    for suffix in [f".{node}" for node in ids] or [""]:
        host = known.get(f"yarn.resourcemanager.hostname{suffix}", "")
        address = known.get(f"yarn.resourcemanager.{key}{suffix}", "")
        address = _expanded(address, {"yarn.resourcemanager.hostname": host, **known})
        if address.startswith("0.0.0.0:") and host:
            address = host + address[len("0.0.0.0") :]
        if address or host:
            found.append(address or f"{host}:{port}")
    return "https" if https else "http", tuple(found)


def _expanded(value: str, known: Mapping[str, str]) -> str:
    """Return a value with the settings that it refers to as ``${name}``."""
    return _VARIABLE.sub(lambda found: known.get(found[1], ""), value)


def checked_application_id(application_id: str) -> str:
    """Return the id if it is that of a YARN application; raise ArgumentError otherwise."""
    if not _ID.fullmatch(application_id):
        raise ArgumentError(
            f"{application_id!r} is not the id of a YARN application; such an id looks like "
            "application_1763690000000_0001"
        )
    return application_id


def _is_json(answer: Answer) -> bool:
    return not answer.body or "json" in answer.content_type


def _no_service(answer: Answer) -> str:
    """Describe an answer that does not count, such as that of a standby in plain text, or that of a proxy."""
    return f"HTTP {answer.status} {answer.message}".strip()


def _refused(address: str, path: str, answer: Answer) -> ClusterError:
    """Return the error for an answer by which YARN refuses a request."""
    what = path.partition("?")[0]
    try:
        said = json.loads(answer.body)["RemoteException"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        said = answer.message
    if answer.status == 404 and what.startswith("apps/"):
        return ApplicationNotFound(
            f"the ResourceManager {address} has no record of {what.split('/')[1]} ({said}); it deletes old "
            "applications, and at a restart without recovery all of them"
        )
    text = f"the ResourceManager {address} refuses {what}: HTTP {answer.status} {said}"
    if answer.status not in (401, 403):
        return ClusterError(text)
    remedy = refusal_remedy(str(said)) or (
        "send the request as the owner of the application (HADOOP_USER_NAME, or with Kerberos a ticket of the owner), or as "
        "an administrator of its queue"
    )
    return ClusterError(f"{text}; {remedy}")
