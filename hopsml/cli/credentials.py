"""``hopsml tokens``, ``hopsml audit`` and ``hopsml secrets``: credentials in a job service, and its audit log."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from hopsml.cli.terminal import AsJson, print_plain


def audit(
    user: Annotated[str, typer.Option(help="Only requests of this user. Default: all users.")] = "",
    action: Annotated[
        str, typer.Option(help="Only this action: submit, cancel, token create, ... Default: all actions.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 100,
    json: AsJson = False,
) -> None:
    """List changes of the job service and refused requests, newest first; for administrators."""
    from hopsml.client import Client

    found = Client.of_environment().audit(user=user, action=action, limit=limit)
    if json:
        import msgspec

        print(msgspec.json.encode(found).decode())
        return
    from hopsml.cli.terminal import print_rows

    rows = [("when", "user", "role", "action", "target", "outcome", "peer")]
    for one in found:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at_s))
        rows.append((at, one.user or "-", one.role or "-", one.action, one.target or "-", str(one.outcome), one.peer))
    print_rows(rows, numbers=("outcome",), wraps="target")


tokens = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens of a job service; for administrators.")


@tokens.command()
def create(
    user: Annotated[str, typer.Argument(metavar="USER", help="User of the token.")],
    role: Annotated[str, typer.Option(help="Role of the user: viewer, user, operator or admin.")] = "viewer",
    label: Annotated[str, typer.Option(help="Text that describes the token. Default: none.")] = "",
    days: Annotated[
        float | None, typer.Option(help="Days until the token expires. Default: it does not expire.")
    ] = None,
) -> None:
    """Create a token and print it; it cannot be printed again.

    The user sets HOPSML_TOKEN to it, and HOPSML_SERVER to the address of the service.
    """
    if days is not None and days <= 0:
        raise typer.BadParameter("--days must be above 0; omit it for a token that does not expire")
    from hopsml.client import Client

    lasts_s = None if days is None else days * 86_400
    print_plain(Client.of_environment().create_token(user, role, label=label, lasts_s=lasts_s))


@tokens.command("ls")
def list_tokens() -> None:
    """List tokens by id, without their values."""
    from hopsml.client import Client

    for one in Client.of_environment().tokens():
        ends = f"until {time.strftime('%Y-%m-%d', time.localtime(one.expires_s))}" if one.expires_s else "no expiry"
        print_plain(f"{one.id}  {one.user}  {one.role}  {'revoked' if one.revoked_s else ends}  {one.label}".rstrip())


@tokens.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, from `hopsml tokens ls`.")],
) -> None:
    """Revoke a token; it is refused from now on."""
    from hopsml.client import Client

    Client.of_environment().revoke_token(token_id)


secrets = typer.Typer(no_args_is_help=True, help="Store, list and delete secrets of your jobs.")
SecretName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="SecretName in job files, such as s3-key; jobs read it from the variable S3_KEY."
    ),
]


@secrets.command()
def put(
    name: SecretName,
    file: Annotated[Path | None, typer.Option(help="File with the value. Default: standard input.")] = None,
) -> None:
    """Store a value, which cannot be read back; a line end after it is removed.

    The value is read from a terminal without echo, from standard input, or from a file, not from the command line.
    """
    from hopsml.client import Client

    if file is None and sys.stdin.isatty():
        value = typer.prompt(f"value of {name}", hide_input=True)
    else:
        value = file.read_text() if file is not None else sys.stdin.read()
    Client.of_environment().put_secret(name, value.removesuffix("\n").removesuffix("\r"))


@secrets.command("ls")
def list_secrets() -> None:
    """List your secrets, without their values."""
    from hopsml.client import Client

    for one in Client.of_environment().secrets():
        print(f"{one.name}  {time.strftime('%Y-%m-%d %H:%M', time.localtime(one.stored_s))}")


@secrets.command("rm")
def delete_secret(name: SecretName) -> None:
    """Delete a secret; jobs that start later do not receive it."""
    from hopsml.client import Client

    Client.of_environment().remove_secret(name)
