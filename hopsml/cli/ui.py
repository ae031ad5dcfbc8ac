"""``hopsml ui``: the runs of a project in the browser."""

from __future__ import annotations

from typing import Annotated

import typer


def ui(
    project_url: Annotated[str, typer.Argument(help="of a project; $HOPSML_PROJECT_URL and its defaults else")] = "",
    port: Annotated[int, typer.Option(help="0 for any that is free")] = 0,
    host: Annotated[str, typer.Option(help="an address of this machine's own")] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="do not open it in a browser")] = False,
) -> None:
    """Show the runs of a project in the browser, live and read only, until Ctrl-C. Nothing has to be set up."""
    from hopsml import settings
    from hopsml.service.rest import server

    server.check_installed()
    from hopsml.service.rest import access

    token, listener = access.new_token(), server.bound(host, port)
    address = server.address(listener, token)

    def ready() -> None:
        print(address, flush=True)
        if not no_browser:
            import webbrowser

            webbrowser.open(address)

    try:
        server.serve(project_url or settings.project_url(), listener, token, ready)
    finally:
        listener.close()
