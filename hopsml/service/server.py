"""Process of ``hopsml server``: the HTTP server, and the thread that runs the jobs.

<state>/service.db       jobs, unless --database names another database
<state>/client.json, own-token, port   address and token for ``hopsml jobs`` on this machine (see ``server_record``)
<state>/secrets.key      key that encrypts secrets, unless HOPSML_SECRETS_KEY is set
<state>/workspaces/, jobs/, applications/
<state>/project/         runs of jobs, unless --project-url, the profile, HOPSML_PROJECT_URL or Hadoop name a store
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hopsml.core import processes, profiles, settings
from hopsml.core.processes import write_no_core_dumps
from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError, ServiceError, StoreError
from hopsml.service import rules_files, server_record
from hopsml.service.browse import datasets
from hopsml.service.engine import Engine, standalone
from hopsml.service.engine.local import LocalEngine, machine_resources
from hopsml.service.engine.standalone import StandaloneEngine
from hopsml.service.engine.yarn import YarnEngine
from hopsml.service.jobs import AUDIT_DAYS, JobService
from hopsml.service.manager import Manager
from hopsml.service.manager.manager import LEASE_S
from hopsml.service.render import spark_submit
from hopsml.service.retention import KEEP_DAYS, Retention
from hopsml.service.scaler import Scaler
from hopsml.service.scheduler.resources import Policy
from hopsml.service.server_record import JobServerRecord, OwnToken
from hopsml.service.store import JobStore
from hopsml.service.store.accounts import Secrets, Tokens, secrets_key
from hopsml.service.store.rows import JobLimits
from hopsml.service.workspaces import Workspaces
from hopsml.storage import durable, urls
from hopsml.submission import is_detachable

if TYPE_CHECKING:
    from hopsml.service.rest.server import Certificate
    from hopsml.service.sign_in import Provider

log = logging.getLogger("hopsml.service")

PROJECT = "project"  # below the state folder, as the next server may start in another working directory
TAG = "hopsml-job"


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server process.

    Attributes:
        state: Folder that only this server uses.
        database: URL of the database; empty for a SQLite file in the state folder.
        profile: Name of the profile that jobs run under; empty for the default.
        project_url: Project whose runs are displayed, and in which jobs record theirs; empty for the profile's.
        host: Address to listen at.
        port: Port to listen at; 0 for a free one; None for the last port of this state folder, so that clients which
            follow a job find the server again.
        queues: File with queues; None for one queue.
        policy: Scheduler's policy; None for the default.
        nodes: File with nodes that the server may add.
        audit_days: Days for which entries of the audit log are retained.
        keep_days: Days for which files of ended jobs are retained.
        changes_per_s: Limit of requests that change something, per second.
        reads_per_s: Limit of requests that read, per second.
        unfinished_jobs: Limit of one user's jobs that have not ended; 0 for no limit.
        stored_jobs: Limit of one user's jobs, including ended ones; 0 for no limit.
        certificate: TLS certificate file; None for HTTP without TLS.
        key: Private key file of the certificate.
        address: URL by which others reach the server; empty for the address that it listens at.
        sign_in: File with the rules of sign-in; None if only tokens are accepted.
        trust_users: True if several accounts may run jobs that have the rights of the server.
        archives: URLs below which packed environments may be stored; empty for the project's store, if it is shared.
        lease_s: Seconds after which another server of the database becomes leader if this one stops responding.
        trusted_proxies: Addresses whose X-Forwarded-For header names the client, for limits and the audit log.
        datasets: URLs below which users may look at the data sets of their jobs, besides Datasets/ of the project.
    """

    state: Path
    database: str = ""
    profile: str = ""
    project_url: str = ""
    host: str = "127.0.0.1"
    port: int | None = 0
    queues: Path | None = None
    policy: Policy | None = None
    nodes: Path | None = None
    audit_days: float = AUDIT_DAYS
    keep_days: float = KEEP_DAYS
    changes_per_s: float = 200.0
    reads_per_s: float = 1000.0
    unfinished_jobs: int = JobLimits().unfinished
    stored_jobs: int = JobLimits().stored
    certificate: Path | None = None
    key: Path | None = None
    address: str = ""
    sign_in: Path | None = None
    trust_users: bool = False
    archives: tuple[str, ...] = ()
    lease_s: float = LEASE_S
    trusted_proxies: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


def run_server(wanted: ServerSettings, ready: Callable[[str], None]) -> None:
    """Serve requests and run jobs until SIGINT or SIGTERM.

    Args:
        wanted: Settings of the server.
        ready: Called with the address to open, which contains the token, when the server accepts requests.

    Raises:
        StoreError: The database cannot be used.
        StorageError: The project's store cannot be used.
        ArgumentError: A setting is invalid, for example a profile whose applications the service could not find again.
    """
    from hopsml.service.browse.project import Changes, Project
    from hopsml.service.rest import server
    from hopsml.service.rest.event_stream import Broadcaster, Streams
    from hopsml.service.rest.feeds import ProjectFeed
    from hopsml.service.rest.limited import Limits
    from hopsml.service.rest.service_application import service_application

    write_no_core_dumps()  # the key of all secrets is in memory, and jobs on this machine are started from here
    limits = Limits(wanted.changes_per_s, wanted.reads_per_s)
    certificate = server.certificate_of_options(wanted.certificate, wanted.key)
    if certificate is not None:
        certificate.context()  # an invalid certificate is reported before anything else starts
    durable.make_folder(wanted.state)
    listener = open_listener(wanted, certificate)
    try:
        here = _address(wanted, server.server_url(listener, scheme="https" if certificate is not None else "http"))
        provider = _provider(wanted.sign_in, here)
        jobs, name = create_job_service(wanted, here)
        try:
            own = OwnToken(wanted.state, Tokens(jobs.store))
            record = JobServerRecord(here, own.value, str(wanted.certificate.absolute() if wanted.certificate else ""))
            jobs.on_end = lambda: _forget(wanted.state, record, own)
            if not own.is_shared or server_record.read(wanted.state) is None:
                server_record.write(wanted.state, record)  # else by the server that leads
            jobs.on_lead = lambda: server_record.write(wanted.state, record)
            project = Project(_project_url(wanted))
            told = Streams(Broadcaster(ProjectFeed(Changes(project))))
            jobs.start()
            app = service_application(jobs, project, told, name, limits, provider)
            answers = server.serve_application(
                app,
                listener,
                told,
                lambda: ready(f"{here}?token={own.value}"),
                certificate,
                project.trim,
                wanted.trusted_proxies,
            )
            asyncio.run(answers)
        finally:
            jobs.close()
    finally:
        listener.close()


def open_listener(wanted: ServerSettings, certificate: Certificate | None = None) -> socket.socket:
    """Return a listening socket at the requested port, or at any free port if the previous one is taken.

    Raises:
        ArgumentError: A port that the settings name is taken.
    """
    from hopsml.service.rest import server

    if wanted.port is None:
        with contextlib.suppress(ArgumentError):
            return server.bind_public(wanted.host, server_record.last_port(wanted.state), certificate)
    return server.bind_public(wanted.host, wanted.port or 0, certificate)


def _address(wanted: ServerSettings, listening: str) -> str:
    """Return the URL by which others reach the server. Raises ArgumentError for an invalid URL."""
    if not wanted.address:
        return listening
    try:
        there = urlsplit(wanted.address)
        is_one = there.scheme in ("http", "https") and there.hostname and (there.port or 1) and not there.query
    except ValueError:
        is_one = False
    if not is_one:
        raise ArgumentError(
            f"--address {wanted.address}: it is a URL by which others come here: write https://HOST:PORT/"
        )
    return wanted.address.rstrip("/") + "/"


def _provider(file: Path | None, here: str) -> Provider | None:
    """Return the sign-in provider of a rules file, or None without a file.

    An unreachable provider is logged, and does not prevent the start of the server.

    Args:
        file: File with the rules of sign-in.
        here: URL of this server, to which the provider redirects.

    Raises:
        ArgumentError: The file is invalid.
    """
    if file is None:
        return None
    from hopsml.service import sign_in
    from hopsml.service.sign_in import Provider

    known = sign_in.load_rules(file)
    made = Provider(known, sign_in.client_secret(known), f"{here}sign-in/back")
    try:
        made.check()
    except ServiceError as error:
        log.warning("nobody can sign in yet: %s", error)
    return made


def create_job_service(wanted: ServerSettings, address: str) -> tuple[JobService, str]:
    """Create the job service of a server with store, engine and manager, without starting it.

    Args:
        wanted: Settings of the server.
        address: URL by which others reach this server.

    Returns:
        The job service, and the name of the service, which is stored in its database.

    Raises:
        ArgumentError: A setting is invalid.
        StoreError: The database cannot be used.
    """
    if not wanted.audit_days > 0:
        raise ArgumentError(f"--audit-days {wanted.audit_days:g}: the audit log is kept for more than 0 days: write 90")
    if not wanted.keep_days > 0:
        raise ArgumentError(f"--keep-days {wanted.keep_days:g}: files of jobs are kept for more than 0 days: write 90")
    if wanted.stored_jobs and not 0 < wanted.unfinished_jobs < wanted.stored_jobs:
        raise ArgumentError(
            f"--stored-jobs {wanted.stored_jobs}: it counts jobs that have ended, too, and is to be higher than "
            f"--unfinished-jobs {wanted.unfinished_jobs}, which is to be limited then"
        )
    profile = profiles.load(wanted.profile or None)
    known = rules_files.load_queues(wanted.queues)
    supply = rules_files.load_nodes(wanted.nodes) if wanted.nodes is not None else None
    if supply is not None and not is_detachable(profile):
        raise ArgumentError(f"--nodes: profile '{profile.name}' runs jobs on this machine alone; name one of YARN")
    limits = JobLimits(wanted.unfinished_jobs, wanted.stored_jobs)
    store = JobStore.open(wanted.database or f"sqlite:///{wanted.state.absolute()}/service.db", limits)
    name = store.service(secrets.token_hex(4))
    prefix = f"{TAG}-{name}"
    engine = _engine(profile, prefix, _project_url(wanted), wanted.state)
    kept = Secrets(store, secrets_key(wanted.state))
    workspaces = Workspaces(wanted.state, _project_url(wanted), kept.values, _archives(wanted))
    manager = Manager(
        store,
        engine,
        workspaces,
        profile=profile.name,
        prefix=prefix,
        holder=processes.process_name(),
        address=address,
        policy=wanted.policy,
        queues=known,
        lease_s=wanted.lease_s,
    )
    scaler = Scaler(manager, supply.provider, supply.groups, supply.exclusion) if supply is not None else None
    names = tuple(queue.name for queue in known)
    has_own_rights = isinstance(engine, LocalEngine)  # drivers are processes of the server's user
    retention = Retention(store, engine, workspaces, manager, _project_url(wanted), wanted.keep_days)
    made = JobService(
        *(store, engine, workspaces, manager, kept, profile.name, names, retention, scaler, wanted.audit_days),
        is_local=spark_submit.is_local(profile),
        only_user=settings.login_name() if has_own_rights and not wanted.trust_users else "",
        dataset_stores=_dataset_stores(wanted),
    )
    try:
        _check_accounts(made, wanted)
    except BaseException:
        made.close()
        raise
    return made, name


def _check_accounts(jobs: JobService, wanted: ServerSettings) -> None:
    """Raise ArgumentError if other accounts than the server's user may run jobs with the server's rights."""
    if not jobs.only_user:
        return
    if wanted.sign_in is not None:
        raise ArgumentError(
            f"--sign-in: jobs of profile {jobs.profile} run as {jobs.only_user}, the user of this server, and whoever "
            "signs in could read its secrets by them; run jobs under a profile of YARN's, or add --trust-users"
        )
    now = time.time()
    for token in Tokens(jobs.store).all():
        if token.revoked_s is None and (token.expires_s is None or token.expires_s > now):
            jobs.check_account(token.user, token.role)


def _project_url(wanted: ServerSettings) -> str:
    """Return the URL of the project whose runs are displayed, and in which jobs record their runs."""
    named = wanted.project_url or profiles.load(wanted.profile or None).store
    if not named:
        named = settings.project_url(local=wanted.state.absolute() / PROJECT)
    urls.check_slashes(named)
    return named if "://" in named else f"file://{Path(named).absolute()}"


def _archives(wanted: ServerSettings) -> tuple[str, ...]:
    """Return the URLs of stores for jobs' packed environments. Raises ArgumentError for a URL of no shared storage."""
    for url in wanted.archives:
        if (
            not urls.scheme_and_authority(url)
            or urls.is_local(url)
            or urls.split(url)[0] in ("http", "https", "ftp", "local")
        ):
            raise ArgumentError(f"--archives {url}: it is the URL of shared storage: write hdfs:///environments")
    if wanted.archives:
        return wanted.archives
    project = urls.scheme_and_authority(_project_url(wanted))
    if not project or urls.is_local(project):
        return ()
    return tuple(sorted({project, *_of_default_fs(project)}))


def _dataset_stores(wanted: ServerSettings) -> tuple[str, ...]:
    """Return the URLs below which users may look at data sets. Raises ArgumentError for one that is not a URL."""
    for url in wanted.datasets:
        if not urls.scheme_and_authority(url) or urls.split(url)[0] in ("http", "https", "ftp", "local"):
            raise ArgumentError(f"--datasets {url}: it is the URL of a folder of a store: write hdfs:///data")
    found = set[str]()
    for url in (urls.join(_project_url(wanted), datasets.FOLDER), *wanted.datasets):
        root, path = urls.scheme_and_authority(url), urls.split(url)[2].rstrip("/")
        found |= {name + path for name in (root, *_of_default_fs(root))}
    return tuple(sorted(found))


def _of_default_fs(root: str) -> set[str]:
    """Return the names of the cluster's own file system, with and without its host, if ``root`` is one of them."""
    names = {f"{urls.split(root)[0]}://", settings.default_fs() or ""} - {""}
    return names if root in names else set()


def _engine(profile: Profile, prefix: str, project_url: str, state: Path) -> Engine:
    """Create the engine of a profile. Raises ArgumentError if the service could not find its applications again."""
    if is_detachable(profile):
        driver_mib = spark_submit.memory_mib(profile.spark.get("spark.driver.memory", "1g"))
        return YarnEngine(prefix, project_url, driver_mib, resizes=profile.can_grow)
    if profile.master == "none" or profile.master.startswith("local"):
        from hopsml.devices import get_num_gpus

        told = "" if profile.uses_spark else project_url
        return LocalEngine(state / "applications", machine_resources(get_num_gpus()), told)
    if profile.master.startswith(standalone.SCHEME):
        return StandaloneEngine(
            state / "applications", machine_resources(0).memory_mib, standalone.status_urls(profile), project_url
        )
    raise ArgumentError(
        f"profile '{profile.name}' (master {profile.master}, {profile.deploy_mode} mode): the service cannot find its "
        "applications again; name a profile of YARN's cluster mode, of standalone Spark, or a local one"
    )


def _forget(state: Path, record: JobServerRecord, own: OwnToken) -> None:
    """Remove the record of this server, and end the validity of its token, at its end."""
    server_record.remove(state, record)
    try:
        own.close()
    except StoreError as error:
        log.warning("the token of the server's user is valid until the next start: %s", error)
