"""``hopsml audit``: who has changed what at a job service; for its administrators."""

from __future__ import annotations

import time
from typing import Annotated

import typer


def audit(
    user: Annotated[str, typer.Option(help="of whom")] = "",
    action: Annotated[str, typer.Option(help="which: submit, cancel, token create, ...")] = "",
    limit: Annotated[int, typer.Option(min=1, help="at most so many")] = 100,
    json: Annotated[bool, typer.Option("--json", help="one line of JSON")] = False,
) -> None:
    """List what was changed at the service and what was refused, the newest first; for its administrators."""
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
