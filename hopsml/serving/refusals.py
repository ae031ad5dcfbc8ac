"""Why a request gets no answer: an HTTP status and a sentence that names the value, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Mapping


class RequestRefused(Exception):
    """``status``: of HTTP, 400 to 599; ``headers`` go with the answer; ``version``: that was chosen, if one was."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, dict(headers or {})
        self.version: int | None = None


def bad_request(text: str) -> RequestRefused:
    """What is in the body cannot be computed."""
    return RequestRefused(400, text)


def not_found(text: str) -> RequestRefused:
    """No such path, model, version or label."""
    return RequestRefused(404, text)
