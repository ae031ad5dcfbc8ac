"""Models of a job's data: its data sets by name, and the location of the folder that its tasks share."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from hopsml.service.spec.fields import SpecPart

_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\x00-\x1f\x7f]+")
_PATH = re.compile(r"/[^\x00-\x1f\x7f]*")


_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@]*:[^/?#]*@|https?://[^/?#]*@", re.IGNORECASE)


def check_no_password(url: str) -> None:
    """Raise ValueError for a URL with a password, or with a token in place of the user of a web server."""
    if _PASSWORD.match(url):
        raise ValueError(
            "the URL contains a password, and job files are readable by other users: for git store it in git's credential "
            "helper, or use ssh"
        )


def is_url(text: str) -> bool:
    """Return True if a text begins as a URL does."""
    return "://" in text


def is_path(text: str) -> bool:
    """Return True for a path of this machine, which only profiles whose workers run here can use."""
    return not is_url(text)


def check_location(text: str, allowed: str) -> None:
    """Raise ValueError unless a text is a URL or an absolute path without ``..``; the error names what is allowed."""
    if not (_URL.fullmatch(text) or _PATH.fullmatch(text)) or ".." in text.split("/"):
        raise ValueError(f"it must be {allowed}")


def check_workspace(text: str) -> None:
    """Raise ValueError for a shared folder with control characters or ``..``, or at the URL of a store without writing."""
    if text.startswith(("http://", "https://", "ssh://", "git://", "git@")):
        raise ValueError("jobs cannot write there; the git URL of the code stands under code")
    check_no_password(text)
    if not (is_path(text) and text.isprintable()):
        check_location(text, "true, a URL or an absolute path")


def _one_or_both(schema: dict[str, Any]) -> None:
    """Let the JSON schema accept the URL alone instead of the table."""
    schema["type"] = ["object", "string"]


class JobDataset(SpecPart):
    """Data set of a job, given as a table or as its URL alone."""

    model_config = ConfigDict(json_schema_extra=_one_or_both)

    url: str = Field(
        description="URL of a file or folder; an absolute path where jobs run on this machine.",
        examples=["s3://bucket/digits"],
    )
    fetch: Literal["auto", "copy", "pass"] = Field(
        default="auto",
        description="copy: into a cache of each node, before the code starts; pass: its URL as it is; auto: hdfs:// and "
        "local files pass, others are copied.",
        examples=["copy"],
    )

    @model_validator(mode="before")
    @classmethod
    def _of_url(cls, given: Any) -> Any:
        """Accept the URL alone."""
        return {"url": given} if isinstance(given, str) else given

    @field_validator("url")
    @classmethod
    def _is_location(cls, url: str) -> str:
        """Raise ValueError for text that is neither a URL nor an absolute path."""
        check_location(url, "a URL or an absolute path: write hdfs:///data/digits")
        check_no_password(url)
        return url
