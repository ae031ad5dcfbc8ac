"""A sign-in under way, sealed, in the browser's own cookie: strangers fill no memory of the server's."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass

from hopsml.errors import ArgumentError

LASTS_S = 600


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """What must come back: ``state`` in the address, ``nonce`` in the ID token; ``verifier`` goes to the provider (PKCE)."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> PendingSignIn:
        """One that nobody guesses."""
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))


class Seal:
    """Of one server, while it lives."""

    def __init__(self) -> None:
        from cryptography.fernet import Fernet

        self._cipher = Fernet(Fernet.generate_key())

    def close(self, pending: PendingSignIn) -> str:
        """A text for a cookie."""
        return self._cipher.encrypt(json.dumps(asdict(pending)).encode()).decode()

    def open(self, text: str) -> PendingSignIn:
        """What was sealed. Raises ArgumentError for what this server has not, or too long ago."""
        from cryptography.fernet import InvalidToken

        try:
            return PendingSignIn(**json.loads(self._cipher.decrypt(text.encode(), LASTS_S)))
        except InvalidToken:
            raise ArgumentError(
                f"this browser has begun no sign-in here within {LASTS_S // 60} minutes; begin again, with cookies allowed"
            ) from None
