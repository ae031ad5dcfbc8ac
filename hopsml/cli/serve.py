"""``hopsml serve NAME``: serve a model of the registry until Ctrl-C."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def serve(
    name: str,
    version: Annotated[str, typer.Option(help="a number, latest, best or an alias; as last time, else latest")] = "",
    model: Annotated[str, typer.Option(help="the model's name, where that is another")] = "",
    host: Annotated[str, typer.Option(help="the address to listen at; as last time, else 127.0.0.1")] = "",
    port: Annotated[int | None, typer.Option(help="0 for any that is free; as last time, else 0")] = None,
    replicas: Annotated[int | None, typer.Option(help="processes that answer; as last time, else 1")] = None,
    log_requests: Annotated[bool | None, typer.Option(help="write inputs and outputs to the project")] = None,
    without_token: Annotated[bool, typer.Option("--without-token", help="let everybody on this machine ask")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="leave it running, and come back")] = False,
) -> None:
    """Serve a model by REST from this machine; NAME is its name, and the model's unless --model says another."""
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
        if not detach and starting.wait(status.supervisor):
            raise typer.Exit(1)
    except KeyboardInterrupt:
        os.close(ours)  # its lifeline: it answers what has come, and ends
        starting.wait(status.supervisor)
