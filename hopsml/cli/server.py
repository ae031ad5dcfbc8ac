"""``hopsml server``: the job service."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer


def log_handler() -> logging.Handler:
    """A handler that writes to the terminal, without what jobs' messages could do to it or pretend to be."""
    from hopsml.tracking.listing import plain

    class PlainFormatter(logging.Formatter):
        """Each entry begins a line, and only entries do."""

        def format(self, record: logging.LogRecord) -> str:
            return plain(super().format(record)).replace("\n", "\n    ")

    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    return handler


def server(
    database: Annotated[str, typer.Option(help="sqlite:///FILE or postgresql://...; a file in --state else")] = "",
    profile: Annotated[str, typer.Option(help="where jobs run: a file of conf/; $HOPSML_PROFILE, else local")] = "",
    port: Annotated[
        int | None, typer.Option(help="0 for any that is free; the last one of its folder, where that is free, else")
    ] = None,
    host: Annotated[str, typer.Option(help="an address of this machine's own; beyond loopback with TLS")] = "127.0.0.1",
    certificate: Annotated[
        Path | None, typer.Option(help="for TLS: a PEM file with the server's, and its chain")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="for TLS: a PEM file with the certificate's key")] = None,
    address: Annotated[str, typer.Option(help="by which others reach it; as it listens else")] = "",
    sign_in: Annotated[
        Path | None, typer.Option(help="a file with an OpenID provider; tokens alone count else")
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None, typer.Option(help="address of a proxy whose X-Forwarded-For names the caller; repeatable")
    ] = None,
    queues: Annotated[Path | None, typer.Option(help="a file with queues; one called default else")] = None,
    nodes: Annotated[Path | None, typer.Option(help="a file with nodes that may be added; none are else")] = None,
    state: Annotated[
        Path | None, typer.Option(help="folder of this server; $HOPSML_SERVER_STATE, else ~/.hopsml/server")
    ] = None,
    project_url: Annotated[
        str, typer.Option(help="where jobs record runs; the profile's, or $HOPSML_PROJECT_URL")
    ] = "",
    archives: Annotated[
        list[str], typer.Option(help="a URL below which packed environments of jobs may lie; the project's store else")
    ] = [],  # noqa: B006 typer reads it
    trust_users: Annotated[
        bool, typer.Option("--trust-users", help="let several accounts run jobs where those run as this server")
    ] = False,
    audit_days: Annotated[float, typer.Option(help="how long the audit log is kept")] = 90.0,
    keep_days: Annotated[float, typer.Option(help="days for which files of ended jobs are retained")] = 90.0,
    changes_per_s: Annotated[float, typer.Option(min=0, help="submissions and the like of one user; 0: any")] = 200.0,
    reads_per_s: Annotated[float, typer.Option(min=0, help="other calls of one user; 0: any number")] = 1000.0,
    unfinished_jobs: Annotated[int, typer.Option(min=0, help="jobs of one user that have not ended; 0: any")] = 10_000,
    stored_jobs: Annotated[
        int, typer.Option(min=0, help="jobs of one user in the database; the oldest ended ones are removed; 0: any")
    ] = 50_000,
) -> None:
    """Queue jobs and run them, until Ctrl-C; what runs then goes on, and is found again by the next server."""
    from hopsml import client
    from hopsml.service.rest import server as servers

    servers.check_installed("hopsml server", ("sqlalchemy", "alembic", "fastapi", "pydantic", "croniter"))
    if sign_in is not None:
        servers.check_installed("hopsml server --sign-in", ("authlib", "joserfc", "requests"))
    from hopsml.service.server import ServerSettings, serve

    logging.basicConfig(handlers=[log_handler()])
    logging.getLogger("hopsml.service").setLevel(logging.INFO)
    wanted = ServerSettings(
        state or client.state_folder(),
        database,
        profile,
        project_url,
        host,
        port,
        queues,
        nodes=nodes,
        archives=tuple(archives),
        trust_users=trust_users,
        audit_days=audit_days,
        keep_days=keep_days,
        changes_per_s=changes_per_s,
        reads_per_s=reads_per_s,
        unfinished_jobs=unfinished_jobs,
        stored_jobs=stored_jobs,
        certificate=certificate,
        key=key,
        address=address,
        sign_in=sign_in,
        trusted_proxies=servers.proxies(trusted_proxy or []),
    )
    serve(wanted, lambda address: print(address, flush=True))
