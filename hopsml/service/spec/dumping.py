"""Conversion of jobs to YAML text."""

from __future__ import annotations

from typing import Any

import yaml

from hopsml.service.spec import scalars
from hopsml.service.spec.job import JobSpec


class _Dumper(yaml.SafeDumper):
    """Safe YAML dumper that quotes text which this reader, or another one, would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True, so that repeated values are written out without aliases."""
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    """Represent text, in quotes if necessary."""
    try:
        quoted = scalars.plain(value) != value
    except ValueError:
        quoted = True
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if quoted else None)


_Dumper.add_representer(str, _text)


def dump(job: JobSpec) -> str:
    """Return the job as YAML that ``load`` reads as the same job; default values are omitted."""
    content = job.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
