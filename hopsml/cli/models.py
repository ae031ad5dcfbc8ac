"""``hopsml models``: list, inspect, export, name and delete versions of models, on any store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopsml.cli.terminal import AsJson, print_plain
from hopsml.tracking import listing
from hopsml.tracking.listing import format_table, number_text, short_text, time_text

if TYPE_CHECKING:
    from hopsml.model.description import Signature
    from hopsml.model.version import Version

app = typer.Typer(no_args_is_help=True, help="List, inspect, export, name and delete versions of models.")
COLUMNS = ("model", "version", "aliases", "created", "size", "metrics", "from")
NUMBERS = ("version", "size")  # aligned at the right

ModelName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the model.")]
ModelVersion = Annotated[
    str, typer.Argument(metavar="VERSION", help="Version of the model: number, latest, an alias, or best:METRIC.")
]
Project = Annotated[str, typer.Option(help="Name of the project. Default: the current project.")]


@app.command()
def ls(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the model whose versions are listed. Default: all models.")
    ] = "",
    project: Project = "",
    as_json: AsJson = False,
) -> None:
    """List the models of a project with their newest versions, or all versions of one model."""
    from hopsml import model
    from hopsml.core import settings

    of = project or None
    found = model.versions(name, of) if name else [model.find(one, project=of) for one in model.models(of)]
    named = {one: model.aliases(one, of) for one in {version.name for version in found}}
    if as_json:
        print(listing.json_line([{**version, "aliases": _aliases(version, named)} for version in found]))
    elif not found:
        print(f"no models in {settings.project_url(of)}", file=sys.stderr)
    else:
        print(
            "\n".join(format_table([COLUMNS, *(_row(version, _aliases(version, named)) for version in found)], NUMBERS))
        )


@app.command()
def show(
    name: ModelName,
    version: ModelVersion = "latest",
    project: Project = "",
    as_json: AsJson = False,
) -> None:
    """Print everything that is recorded of a version."""
    from hopsml import model

    found = model.find(name, version, project or None)
    aliases = _aliases(found, {name: model.aliases(name, project or None)})
    if as_json:
        print(listing.json_line({**found, "aliases": aliases}))
        return
    facts = {title: text for title, text in _facts(found, aliases).items() if text}
    width = max(map(len, facts))
    for title, text in facts.items():
        print_plain(f"{title:{width}}  " + text.replace("\n", "\n" + " " * (width + 2)))


@app.command()
def export(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="File or directory: a local path, a URL, or a path relative to the project."
        ),
    ],
    name: ModelName,
    metric: Annotated[
        list[str] | None, typer.Option(help="Metric of the version, NAME=NUMBER; may be given more than once.")
    ] = None,
    description: Annotated[str, typer.Option(help="Description of the version. Default: none.")] = "",
    version: Annotated[int, typer.Option(help="Number of the version; 0 selects the next free number.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the version if it exists.")] = False,
    project: Project = "",
) -> None:
    """Export existing files as a version of a model."""
    from hopsml import model

    made = model.export(
        path, name, version or None, overwrite, dict(map(_metric, metric or [])), description, project=project or None
    )
    assert made is not None  # None only in ranks of a run other than the chief
    print(f"version {made.version}  {made.url}")


@app.command()
def alias(
    name: ModelName,
    version: ModelVersion,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Alias, such as production.")],
    delete: Annotated[bool, typer.Option("--delete", help="Delete the alias; VERSION is ignored.")] = False,
    project: Project = "",
) -> None:
    """Set an alias to a version, or delete the alias."""
    from hopsml import model

    if delete:
        model.delete_alias(name, alias, project or None)
        print(f"{name}: {alias} is deleted")
        return
    found = model.set_alias(name, version, alias, project or None)
    print(f"{name}: {alias} is version {found.version}")


@app.command()
def delete(
    name: ModelName,
    version: ModelVersion,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete the version although an alias points to it.")] = False,
    project: Project = "",
) -> None:
    """Delete a version with its files; its number is not used again."""
    from hopsml import model
    from hopsml.errors import ArgumentError

    if not yes:
        if not sys.stdin.isatty():
            raise ArgumentError(
                "nothing was deleted, since standard input is not a terminal and cannot confirm; add --yes to delete"
            )
        typer.confirm(f"delete version {version} of the model '{name}'?", abort=True)
    model.delete(name, version, force=force, project=project or None)
    print(f"deleted version {version} of the model '{name}'")


def _metric(text: str) -> tuple[str, float]:
    from hopsml.errors import ArgumentError

    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ArgumentError(f"--metric {text!r}: a metric must be NAME=NUMBER, such as accuracy=0.98") from None


def _aliases(version: Version, named: dict[str, dict[str, int]]) -> list[str]:
    return [alias for alias, number in named[version.name].items() if number == version.version]


def _row(version: Version, aliases: list[str]) -> tuple[str, ...]:
    known = version.description
    return (
        known.name,
        str(known.version),
        ", ".join(aliases) or "-",
        time_text(known.created.timestamp()),
        _size(known.bytes),
        _metrics(known.metrics) or "-",
        known.lineage.run_id or known.creator,
    )


def _facts(version: Version, aliases: list[str]) -> dict[str, str]:
    known = version.description
    origin = known.lineage
    return {
        "model": known.name,
        "version": str(known.version),
        "aliases": ", ".join(aliases),
        "description": known.description,
        "metrics": _metrics(known.metrics),
        "flavor": known.flavor,
        "inputs": _tensors(known.signature, "inputs"),
        "outputs": _tensors(known.signature, "outputs"),
        "created": f"{time_text(known.created.timestamp())} by {known.creator}",
        "run": origin.run_url,
        "commit": origin.commit + (" (changed since)" if origin.dirty else ""),
        "data": "\n".join(f"{one.get('url')}  {one.get('checksum', '')}".rstrip() for one in origin.data),
        "made with": "  ".join(f"{name} {number}" for name, number in known.requirements.items()),
        "files": f"{len(known.files)}, {_size(known.bytes)}",
        "directory": version.url,
    }


def _tensors(signature: Signature | None, which: str) -> str:
    specs: dict[str, Any] = getattr(signature, which, {})
    return "\n".join(f"{name}  {spec.dtype}{_shape(spec.shape)}" for name, spec in specs.items())


def _shape(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def _metrics(metrics: dict[str, float]) -> str:
    return "  ".join(f"{short_text(name)}={number_text(value)}" for name, value in metrics.items())


def _size(count: int) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count = count / 1000  # type: ignore[assignment]
    return f"{count:.3g} GB"
