"""Conversions of job files: reading and validation with messages for all mistakes, writing as YAML, and the JSON schema.

The schema is for editors; some rules between fields are only checked when a file is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from hopsml.core import suggestions
from hopsml.errors import JobFileError
from hopsml.service.spec import document, limits
from hopsml.service.spec.document import Document, Problem, read_document
from hopsml.service.spec.document import Path as FieldPath
from hopsml.service.spec.fields import SpecPart
from hopsml.service.spec.job import JobSpec
from hopsml.storage import trust

_KINDS = {
    "int_type": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_type": "it must be a number",
    "string_type": "it must be text, in quotes where it looks like a number",
    "bool_type": "it must be true or false",
    "dict_type": "it must be a table of names and values",
    "tuple_type": "it must be a list",
    "list_type": "it must be a list",
    "model_type": "it must be a table of fields",
    "model_attributes_type": "it must be a table of fields",
    "string_too_short": "it must not be empty",
    "string_too_long": "it is too long: at most {max_length} characters",
    "string_pattern_mismatch": "it does not have the right form",
    "greater_than_equal": "it must be at least {ge}",
    "less_than_equal": "it must be at most {le}",
    "less_than": "it must be below {lt}",
    "literal_error": "it must be one of {expected}",
    "too_short": "it must have at least {min_length}",
    "too_long": "{given} are given; at most {max_length} are allowed; request fewer",
}
# Names of fields in other job launchers, which are too different for suggestions by spelling.
_ELSEWHERE = {
    "algorithm": "searcher",
    "trials": "num_trials",
    "replicas": "count",
    "num_replicas": "count",
    "entrypoint": "command",
    "run": "command",
    "args": "arguments",
    "envs": "env",
    "gpu": "gpus",
    "cpu": "cores",
    "cpus": "cores",
    "roles": "tasks",
    "image": "environment",
    "after": "count",
}


def problems_of_error(
    error: ValidationError, model: type[SpecPart], document: Document, known: Container[FieldPath] = ()
) -> list[Problem]:
    """Convert pydantic's errors about a document to problems, in the order of their lines.

    Only the problems that will be listed get a text, as suggestions of similar names are slow.

    Args:
        error: The validation error.
        model: The model that the document was validated against.
        document: The document, with its lines.
        known: Paths of problems that were reported before, which are skipped.
    """
    found = []
    for one in error.errors(include_url=False):
        path, on_key = _path(one["loc"])
        if path not in known:
            found.append((document.line(path), path, on_key, one))
    found.sort(key=lambda each: each[0])
    return [
        Problem(line, path, _message(one, path, on_key, model) if number < limits.PROBLEMS else "")
        for number, (line, path, on_key, one) in enumerate(found)
    ]


def _path(location: tuple[int | str, ...]) -> tuple[FieldPath, bool]:
    """Return the path of an error, and whether it is about a mapping's key."""
    on_key = location[-1:] == ("[key]",)
    return tuple(location[:-1] if on_key else location), on_key


def _message(error: Any, path: FieldPath, on_key: bool, model: type[SpecPart]) -> str:
    """Return the message for one of pydantic's errors."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(str(path[-1]), _at(model, path[:-1]))
    example = _example(model, path)
    if kind == "missing":
        return f"it is missing{example}"
    if kind == "value_error":
        rule = str(context["error"])
        is_about_a_part = isinstance(error["input"], Mapping | list)
        return rule if is_about_a_part else f"{_shown(path[-1] if on_key else error['input'])}: {rule}"
    rule = str(_KINDS.get(kind, error["msg"])).format(**context, given=_length(error["input"]))
    if kind == "too_long":
        return rule
    if kind == "too_short":
        return rule + example
    if kind == "literal_error" and isinstance(error["input"], str):
        choices = [choice.strip("' ") for choice in context["expected"].replace(" or ", ",").split(",")]
        if meant := suggestions.similar_names(error["input"], choices):
            return f"{_shown(error['input'])}: {rule}; did you mean {meant[0]}?"
    return f"{_shown(error['input'])}: {rule}{example}"


def _length(value: object) -> int:
    """Return the length of a list or mapping; 1 for other values."""
    return len(value) if isinstance(value, list | dict) else 1


def _unknown(name: str, there: type[SpecPart] | None) -> str:
    """Return the message for an unknown field, with a suggestion."""
    known = [field.alias or key for key, field in there.model_fields.items()] if there is not None else []
    if (ours := _ELSEWHERE.get(name)) in known:
        return f"unknown field; here it is {ours}"
    return f"unknown field: {suggestions.suggestion_text(name, known, 'there are: ' + ', '.join(known))}"


def _shown(value: object) -> str:
    """Return a value as it is written in a job file, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _example(model: type[SpecPart], path: FieldPath) -> str:
    """Return the end of a message, with an example of the field."""
    there = _at(model, path[:-1])
    if there is None or not path:
        return ""
    for key, field in there.model_fields.items():
        if (field.alias or key) == path[-1] and field.examples:
            return f": write, for instance, {path[-1]}: {_shown(field.examples[0])}"
    return ""


def _at(model: type[SpecPart], path: FieldPath) -> type[SpecPart] | None:
    """Return the model of the part at a path; None if it is not a model, such as a task's arguments."""
    here: Any = model
    for step in path:
        if not (isinstance(here, type) and issubclass(here, BaseModel)):
            here = _below(here)
            continue
        fields = [field for key, field in here.model_fields.items() if (field.alias or key) == step]
        here = fields[0].annotation if fields else None
    while here is not None and not isinstance(here, type):
        parts = [one for one in getattr(here, "__args__", ()) if isinstance(one, type) and issubclass(one, SpecPart)]
        here = parts[0] if parts and not _is_table(here) else None
    return here if isinstance(here, type) and issubclass(here, SpecPart) else None


def _is_table(annotation: Any) -> bool:
    """Return True for the annotation of a mapping or tuple."""
    return getattr(annotation, "__origin__", None) in (dict, tuple)


def _below(annotation: Any) -> Any:
    """Return the type of a mapping's or tuple's values."""
    return annotation.__args__[-1] if _is_table(annotation) else None


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12), in which every field has a description and an example."""
    found = _closed(JobSpec.model_json_schema(by_alias=True, mode="validation"))
    return {"$schema": DIALECT, "title": "A hopsml job", **found}


def schema_text() -> str:
    """Return the JSON schema as text, as ``hopsml jobs schema`` prints it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False)


def _closed(part: Any) -> Any:
    """Remove pydantic's titles, which repeat the names, and forbid keys of tables that do not match their pattern."""
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {key: _closed(value) for key, value in part.items() if key != "title" or not isinstance(value, str)}
    return {**kept, "additionalProperties": False} if "patternProperties" in kept else kept


class _Dumper(yaml.SafeDumper):
    """Safe YAML dumper that quotes text which this reader, or another one, would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True, so that repeated values are written out without aliases."""
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    """Represent text, in quotes if necessary."""
    try:
        quoted = document.parse_scalar(value) != value
    except ValueError:
        quoted = True
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if quoted else None)


_Dumper.add_representer(str, _text)


def dump(job: JobSpec) -> str:
    """Return the job as YAML that ``load`` reads as the same job; default values are omitted."""
    content = job.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if "workspace" in content:
        content.setdefault("code", job.code)  # a workspace without code may be that of earlier job files
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def load(path: str | Path) -> JobSpec:
    """Read a job file and validate it.

    Args:
        path: The file.

    Raises:
        JobFileError: The file is invalid; the error lists all mistakes with file, line, field and remedy.
    """
    try:
        with open(path, "rb", opener=trust.opener) as file:
            content = file.read(limits.FILE_BYTES + 1)
    except OSError as error:
        raise JobFileError([f"{path}: it cannot be read: {error.strerror or error}; name a job file"]) from error
    except ValueError as error:  # the path contains a NUL character
        raise JobFileError([f"{path!r}: it cannot be read: {error}; name a job file"]) from error
    return loads(content, str(path))


def loads(content: bytes | str, source: str = "job.yaml") -> JobSpec:
    """Read a job from YAML text and validate it.

    Args:
        content: The text, or its bytes.
        source: Name of the text in messages.

    Raises:
        JobFileError: The text is invalid; the error lists all mistakes with line, field and remedy.
    """
    document = read_document(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    found = list(document.problems)
    job = None if document.value is None else _checked(document, found)
    if found or job is None:
        raise JobFileError(_lines(found, source))
    return job


def _checked(document: Document, found: list[Problem]) -> JobSpec | None:
    """Validate the document as a job; mistakes are appended to ``found``."""
    if not isinstance(document.value, dict):
        found.append(Problem(1, (), "a job file is a table of fields, such as name and tasks: write name: digits"))
        return None
    try:
        return JobSpec.model_validate_json(json.dumps(document.value))
    except ValidationError as error:
        known = {problem.path for problem in found}  # mistakes that the YAML reader has reported are not repeated
        found += problems_of_error(error, JobSpec, document, known)
        return None


def _lines(found: list[Problem], source: str) -> list[str]:
    """Return the messages for the first problems, ordered by line."""
    listed = [_line(problem, source) for problem in sorted(found, key=lambda problem: problem.line)[: limits.PROBLEMS]]
    more = len(found) - len(listed)
    return [*listed, *([f"{source}: and {more} more"] if more else [])]


def _line(problem: Problem, source: str) -> str:
    """Return one message with source, line and field."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step:.64}" for step in problem.path).lstrip(".")
    return f"{source}:{problem.line}: {path}{': ' if path else ''}{problem.text}"
