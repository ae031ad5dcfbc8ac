"""``hopsml tokens`` and ``hopsml audit``: tokens and the audit log of a job service, for its administrators."""

from __future__ import annotations

import time
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


app = typer.Typer(no_args_is_help=True, help="Create, list and revoke tokens of a job service; for administrators.")


@app.command()
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
    from hopsml.client import Client

    print_plain(Client.of_environment().create_token(user, role, label=label, lasts_s=days * 86_400 if days else None))


@app.command()
def ls() -> None:
    """List tokens by id, without their values."""
    from hopsml.client import Client

    for one in Client.of_environment().tokens():
        ends = f"until {time.strftime('%Y-%m-%d', time.localtime(one.expires_s))}" if one.expires_s else "no expiry"
        print_plain(f"{one.id}  {one.user}  {one.role}  {'revoked' if one.revoked_s else ends}  {one.label}".rstrip())


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, from `hopsml tokens ls`.")],
) -> None:
    """Revoke a token; it is refused from now on."""
    from hopsml.client import Client

    Client.of_environment().revoke_token(token_id)
