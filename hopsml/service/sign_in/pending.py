"""State of a sign-in in progress, encrypted in a cookie of the browser.

Thus unauthenticated clients use no memory of the server.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass

from hopsml.errors import ArgumentError

LASTS_S = 600


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """Secrets of one sign-in, which the provider's response must match.

    Attributes:
        state: Must be returned in the URL.
        nonce: Must be returned in the ID token.
        verifier: Sent to the provider with the code (PKCE).
    """

    state: str
    nonce: str
    verifier: str

    @classmethod
    def new(cls) -> PendingSignIn:
        """Return new random secrets, which cannot be guessed."""
        return cls(*(secrets.token_urlsafe(32) for _ in range(3)))


class Seal:
    """Encryption of pending sign-ins by one server process, with a key that ends with it."""

    def __init__(self) -> None:
        from cryptography.fernet import Fernet

        self._cipher = Fernet(Fernet.generate_key())

    def close(self, pending: PendingSignIn) -> str:
        """Encrypt a pending sign-in as the text of a cookie."""
        return self._cipher.encrypt(json.dumps(asdict(pending)).encode()).decode()

    def open(self, text: str) -> PendingSignIn:
        """Decrypt the text of a cookie.

        Raises:
            ArgumentError: This server did not encrypt the text, or did so more than ``LASTS_S`` seconds ago.
        """
        from cryptography.fernet import InvalidToken

        try:
            return PendingSignIn(**json.loads(self._cipher.decrypt(text.encode(), LASTS_S)))
        except InvalidToken:
            raise ArgumentError(
                f"this browser has begun no sign-in here within {LASTS_S // 60} minutes; begin again, with cookies allowed"
            ) from None
