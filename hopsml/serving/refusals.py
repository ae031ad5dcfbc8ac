"""Refusals of requests: an HTTP status and a sentence with the value, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Mapping


class RequestRefused(Exception):
    """Error for a request that is answered by an HTTP error.

    Attributes:
        status: HTTP status, 400 to 599.
        text: Text of the answer.
        headers: Additional headers of the answer.
        version: Version that was chosen; None if none was.
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, dict(headers or {})
        self.version: int | None = None


def bad_request(text: str) -> RequestRefused:
    """Return the error for a body that cannot be computed (400)."""
    return RequestRefused(400, text)


def not_found(text: str) -> RequestRefused:
    """Return the error for an unknown path, model, version or label (404)."""
    return RequestRefused(404, text)
