"""``hopsml token create|ls|revoke``: who may ask a job service; for its administrators."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hopsml.cli.terminal_text import print_plain

app = typer.Typer(no_args_is_help=True, help="Tokens of a job service: create, list, revoke; for its administrators.")


@app.command()
def create(
    user: Annotated[str, typer.Argument(help="for whom")],
    role: Annotated[str, typer.Option(help="viewer, user, operator or admin")] = "viewer",
    label: Annotated[str, typer.Option(help="what it is for")] = "",
    days: Annotated[float | None, typer.Option(help="after which it ends; never else")] = None,
) -> None:
    """Print a new token, which nobody can read again. Its user sets HOPSML_SERVER and HOPSML_TOKEN."""
    from hopsml.client import Client

    print_plain(Client.of_environment().create_token(user, role, label=label, lasts_s=days * 86_400 if days else None))


@app.command()
def ls() -> None:
    """List tokens, without themselves."""
    from hopsml.client import Client

    for one in Client.of_environment().tokens():
        ends = f"until {time.strftime('%Y-%m-%d', time.localtime(one.expires_s))}" if one.expires_s else "for ever"
        print_plain(f"{one.id}  {one.user}  {one.role}  {'revoked' if one.revoked_s else ends}  {one.label}".rstrip())


@app.command()
def revoke(token_id: Annotated[str, typer.Argument(help="as `hopsml token ls` prints it")]) -> None:
    """End a token at once."""
    from hopsml.client import Client

    Client.of_environment().revoke_token(token_id)
