"""Generate the tables of fields in docs/reference/job.md, and the JSON schema in its folder, from the code.

python -m tools.job_reference      # writes both files; a test compares them with the code
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hopsml.service.spec import loading

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
PAGE, SCHEMA = REFERENCE / "job.md", REFERENCE / "job.schema.json"
BEGIN, END = "<!-- fields: python -m tools.job_reference -->\n", "<!-- end of the fields -->\n"
_TITLES = {
    "Task": "A task",
    "WorkerResources": "`resources` of a task",
    "TaskEnvironment": "`environment` of a task",
    "JobDataset": "`datasets`, each a URL or a table",
    "Search": "`search`",
}
_WORDS = {"string": "text", "integer": "whole number", "object": "table", "array": "list", "number": "number"}
_WORDS |= {"boolean": "`true`, `false`"}


def tables() -> str:
    """Return Markdown with a table of the job's fields, and one for each of its parts."""
    whole = loading.schema()
    parts = [("The job", whole), *((title, whole["$defs"][name]) for name, title in _TITLES.items())]
    return "\n".join(f"### {title}\n\n{_table(part)}" for title, part in parts)


def _table(part: dict[str, Any]) -> str:
    rows = ["| field | kind | meaning | example |", "|---|---|---|---|"]
    for name, field in part["properties"].items():
        meaning = field["description"]
        if name in part.get("required", ()):
            meaning += " Required."
        elif (default := field.get("default")) not in (None, "", [], {}):
            meaning += f" Default: {_shown(default)}."
        rows.append(f"| `{name}` | {_kind(field)} | {meaning} | {_shown(field['examples'][0])} |")
    return "\n".join(rows) + "\n"


def _kind(field: dict[str, Any]) -> str:
    kinds = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    return " or ".join(map(_kind_of_one, kinds))


def _kind_of_one(one: dict[str, Any]) -> str:
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    kind = _WORDS.get(one.get("type", "object"), "table")
    low, high = one.get("minimum"), one.get("maximum")
    return f"{kind}, {low} to {high}" if low is not None and high is not None else kind


def _shown(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def main() -> None:
    """Write both files again."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    SCHEMA.write_text(loading.schema_text() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
