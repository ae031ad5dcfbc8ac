"""Writing job files."""

from __future__ import annotations

from typing import Any

import yaml

from hopsml.service.spec import scalars
from hopsml.service.spec.job import JobSpec


class _Dumper(yaml.SafeDumper):
    """YAML's safe dumper, with quotes around text that our reader, or another one, would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        """What stands there twice is written twice."""
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    try:
        quoted = scalars.plain(value) != value
    except ValueError:
        quoted = True
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if quoted else None)


_Dumper.add_representer(str, _text)


def dump(job: JobSpec) -> str:
    """The job as YAML that ``load`` reads as the same job; what has its default is left out."""
    content = job.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
