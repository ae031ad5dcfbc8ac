"""``hopsml serve``: serve models of the registry by REST, and inspect, change and stop servings."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hopsml.cli.terminal import AsJson

if TYPE_CHECKING:
    from hopsml.serving.definitions import ServingStatus

app = typer.Typer(no_args_is_help=True, help="Serve models by REST: start, inspect, change versions, stop.")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the serving; also the model's name, unless --model is given.")
]
Existing = Annotated[str, typer.Argument(metavar="NAME", help="Name of the serving.")]
VersionOption = Annotated[
    str,
    typer.Option(
        help="Version to serve: a number, latest, best or an alias. Default: as at the last start, else latest."
    ),
]
ModelOption = Annotated[str, typer.Option(help="Name of the model. Default: as at the last start, else NAME.")]
Host = Annotated[str, typer.Option(help="Address to listen on. Default: as at the last start, else 127.0.0.1.")]
Port = Annotated[
    int | None,
    typer.Option(help="Port to listen on; 0 selects a free port. Default: as at the last start, else 0."),
]
Replicas = Annotated[
    int | None, typer.Option(help="Number of replica processes. Default: as at the last start, else 1.")
]
LogRequests = Annotated[
    bool | None, typer.Option(help="Write inputs and outputs to the project. Default: as at the last start, else no.")
]


@app.command()
def run(
    name: Name,
    version: VersionOption = "",
    model: ModelOption = "",
    host: Host = "",
    port: Port = None,
    replicas: Replicas = None,
    log_requests: LogRequests = None,
    without_token: Annotated[
        bool, typer.Option("--without-token", help="Accept requests of this machine without a token.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option("--detach", help="Return when the replicas are ready; the serving continues in the background."),
    ] = False,
) -> None:
    """Serve a model by REST from this machine until Ctrl-C."""
    from hopsml.serving import manager, starting

    lifeline, ours = os.pipe()
    status = manager.start(
        name,
        version or None,
        model=model or None,
        host=host or None,
        port=port,
        replicas=replicas,
        log_requests=log_requests,
        without_token=without_token,
        lifeline=-1 if detach else lifeline,
        profile="local",
    )
    os.close(lifeline)
    try:
        print(status, flush=True)
        if not detach and starting.wait_for_exit(status.supervisor):
            raise typer.Exit(1)
    except KeyboardInterrupt:
        os.close(ours)  # the supervisor ends when this pipe is closed, after it has answered open requests
        starting.wait_for_exit(status.supervisor)


@app.command()
def start(
    name: Name,
    version: VersionOption = "",
    profile: Annotated[
        str,
        typer.Option(
            help="Profile of the cluster that serves, such as yarn; local serves on this machine. Default: as at the "
            "last start, else local."
        ),
    ] = "",
    model: ModelOption = "",
    host: Host = "",
    port: Port = None,
    replicas: Replicas = None,
    log_requests: LogRequests = None,
    start_timeout: Annotated[float, typer.Option(help="Seconds within which all replicas must be ready.")] = 300.0,
) -> None:
    """Serve a model by REST in the background, on this machine or a cluster; return when it is ready."""
    from hopsml.serving import manager

    status = manager.start(
        name,
        version or None,
        model=model or None,
        host=host or None,
        port=port,
        replicas=replicas,
        log_requests=log_requests,
        start_timeout=start_timeout,
        profile=profile or None,
    )
    print(status)


@app.command()
def ls(as_json: AsJson = False) -> None:
    """List the servings of the project."""
    from hopsml.serving import manager
    from hopsml.serving.definitions import servings_url
    from hopsml.tracking import listing
    from hopsml.tracking.listing import format_table

    found = manager.servings()
    if as_json:
        print(listing.json_line([_plain(one) for one in found]))
    elif not found:
        print(f"no servings in {servings_url()}", file=sys.stderr)
    else:
        rows = [
            (one.name, one.model, str(one.version or ""), one.state, _ready(one), one.url or one.why) for one in found
        ]
        print("\n".join(format_table([("NAME", "MODEL", "VERSION", "STATE", "READY", "URL"), *rows])))


def _ready(one: ServingStatus) -> str:
    return f"{'?' if one.ready is None or one.state == 'Unknown' else one.ready}/{one.replicas or '?'}"


@app.command()
def show(name: Existing, as_json: AsJson = False) -> None:
    """Print the state of a serving, and an example request."""
    from hopsml.serving import manager
    from hopsml.tracking import listing

    found = manager.status(name)
    print(listing.json_line(_plain(found)) if as_json else found)


@app.command()
def roll(
    name: Existing,
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="Version to serve: number, latest, best or an alias.")
    ] = "latest",
) -> None:
    """Switch to another version without a failed request."""
    from hopsml.serving import manager

    print(manager.roll(name, version))


@app.command()
def canary(
    name: Existing,
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="Version of the canary: number, latest, best or an alias.")
    ],
    share: Annotated[float, typer.Argument(metavar="SHARE", help="Share of requests, from 0 to 1; 0 ends the canary.")],
) -> None:
    """Send a share of the requests to another version."""
    from hopsml.serving import manager

    print(manager.canary(name, version, share))


@app.command()
def logs(
    name: Existing,
    last: Annotated[int, typer.Option(help="Maximum number of lines of each log, the newest ones.")] = 100,
) -> None:
    """Print the logs of the supervisor and of all replicas."""
    from hopsml.serving import manager

    print(manager.logs(name, last))


@app.command()
def stop(name: Existing) -> None:
    """Stop a serving after it has answered the requests it has received."""
    from hopsml.serving import manager

    manager.stop(name)
    print(f"{name}: stopped")


@app.command()
def delete(name: Existing) -> None:
    """Stop a serving and delete its definition; its request log remains."""
    from hopsml.serving import manager

    manager.delete(name)
    print(f"{name}: deleted")


def _plain(status: object) -> object:
    import msgspec

    return msgspec.to_builtins(status)
