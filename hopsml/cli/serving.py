"""``hopsml serving start|ls|show|roll|canary|logs|stop|delete``: what is served."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hopsml.serving.manager import ServingStatus

app = typer.Typer(no_args_is_help=True, help="What is served: look, go over to another version, stop.")
As_json = Annotated[bool, typer.Option("--json", help="for scripts")]


@app.command()
def start(
    name: str,
    version: Annotated[str, typer.Option(help="a number, latest, best or an alias; as last time, else latest")] = "",
    profile: Annotated[
        str, typer.Option(help="a cluster's, such as yarn; as last time, else local: this machine")
    ] = "",
    model: Annotated[str, typer.Option(help="the model's name, where that is another")] = "",
    host: Annotated[str, typer.Option(help="the address to listen at; as last time, else 127.0.0.1")] = "",
    port: Annotated[int | None, typer.Option(help="0 for any that is free; as last time, else 0")] = None,
    replicas: Annotated[int | None, typer.Option(help="processes that answer; as last time, else 1")] = None,
    log_requests: Annotated[bool | None, typer.Option(help="write inputs and outputs to the project")] = None,
    start_timeout: Annotated[float, typer.Option(help="seconds until all replicas must answer")] = 300.0,
) -> None:
    """Serve a model by REST, from this machine or on a cluster, and come back when it answers."""
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
def ls(as_json: As_json = False) -> None:
    """List the servings of the project."""
    from hopsml.serving import manager
    from hopsml.serving.places import servings_url
    from hopsml.tracking import strict_json
    from hopsml.tracking.listing import table

    found = manager.servings()
    if as_json:
        print(strict_json.dumps([_plain(one) for one in found]))
    elif not found:
        print(f"nothing is served in {servings_url()}", file=sys.stderr)
    else:
        rows = [
            (one.name, one.model, str(one.version or ""), one.state, _ready(one), one.url or one.why) for one in found
        ]
        print("\n".join(table([("NAME", "MODEL", "VERSION", "STATE", "READY", "URL"), *rows])))


def _ready(one: ServingStatus) -> str:
    return f"{'?' if one.ready is None or one.state == 'Unknown' else one.ready}/{one.replicas or '?'}"


@app.command()
def show(name: str, as_json: As_json = False) -> None:
    """How it stands, and how to ask it."""
    from hopsml.serving import manager
    from hopsml.tracking import strict_json

    found = manager.status(name)
    print(strict_json.dumps(_plain(found)) if as_json else found)


@app.command()
def roll(
    name: str, version: Annotated[str, typer.Argument(help="a number, latest, best or an alias")] = "latest"
) -> None:
    """Go over to another version without a failed request."""
    from hopsml.serving import manager

    print(manager.roll(name, version))


@app.command()
def canary(name: str, version: str, share: Annotated[float, typer.Argument(help="0 to 1; 0 ends it")]) -> None:
    """Let another version answer a share of requests."""
    from hopsml.serving import manager

    print(manager.canary(name, version, share))


@app.command()
def logs(name: str, last: Annotated[int, typer.Option(help="lines of each log")] = 100) -> None:
    """What the supervisor and the replicas have logged."""
    from hopsml.serving import manager

    print(manager.logs(name, last))


@app.command()
def stop(name: str) -> None:
    """Answer what has come, and end."""
    from hopsml.serving import manager

    manager.stop(name)
    print(f"{name}: stopped")


@app.command()
def delete(name: str) -> None:
    """Stop it, and forget it; its request log stays."""
    from hopsml.serving import manager

    manager.delete(name)
    print(f"{name}: deleted")


def _plain(status: object) -> object:
    import msgspec

    return msgspec.to_builtins(status)
