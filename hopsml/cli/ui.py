"""``hopsml ui``: web page with the runs of a project."""

from __future__ import annotations

from typing import Annotated

import typer


def ui(
    project_url: Annotated[
        str,
        typer.Argument(
            metavar="PROJECT_URL",
            help="URL of the project. Default: $HOPSML_PROJECT_URL, else HDFS if configured, else ./.hopsml.",
        ),
    ] = "",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.")] = 0,
    host: Annotated[str, typer.Option(help="Address to listen on: 127.0.0.1, ::1 or localhost.")] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, and open no browser.")] = False,
) -> None:
    """Show the runs of a project in the browser until Ctrl-C, live and read-only."""
    from hopsml.core import settings
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
        server.run_page_server(project_url or settings.project_url(), listener, token, ready)
    finally:
        listener.close()
