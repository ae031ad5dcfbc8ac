"""``hopsml audit``: audit log of a job service, for its administrators."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hopsml.cli.options import AsJson


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
    from hopsml.cli.rows import print_rows

    rows = [("when", "user", "role", "action", "target", "outcome", "peer")]
    for one in found:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at_s))
        rows.append((at, one.user or "-", one.role or "-", one.action, one.target or "-", str(one.outcome), one.peer))
    print_rows(rows, numbers=("outcome",), wraps="target")
