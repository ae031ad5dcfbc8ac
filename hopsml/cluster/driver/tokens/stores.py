"""Tokens of one store among several: an error of one store costs neither its last tokens nor those of the others. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hopsml.cluster.driver.tokens import plan
from hopsml.core.delegation_tokens import Credentials


@dataclass(frozen=True)
class StoreTokens:
    """Last tokens of a store, and the outcome of the last attempt to obtain some; times in seconds since the epoch.

    Attributes:
        credentials: the tokens; empty for a store that needs none, or before the first success.
        life_s: seconds for which they could be used when they were obtained.
        ends_s: when they can no longer be used.
        due_s: when to obtain others.
        failures: failed attempts since the last successful one.
        reason: why the last attempt failed; "" if it did not.
    """

    credentials: Credentials = field(default=Credentials(), repr=False)
    life_s: float = 0.0
    ends_s: float = 0.0
    due_s: float = 0.0
    failures: int = 0
    reason: str = ""

    def usable(self, now_s: float) -> Credentials:
        """Return the tokens that can be used now."""
        return self.credentials if now_s < self.ends_s else Credentials()


def after_success(credentials: Credentials, life_s: float, now_s: float) -> StoreTokens:
    """Return the state of a store after tokens with a life of ``life_s`` seconds were obtained.

    Args:
        credentials: the tokens; empty if the store needs none.
        life_s: seconds for which they can be used.
        now_s: time of the request.
    """
    return StoreTokens(credentials, life_s, now_s + life_s, now_s + plan.obtain_again_s(life_s))


def after_failure(last: StoreTokens, reason: str, now_s: float) -> StoreTokens:
    """Return the state of a store after an attempt that failed for this reason."""
    failures = last.failures + 1
    left_s = last.ends_s - now_s if last.credentials.tokens else 0.0
    return replace(last, failures=failures, reason=reason, due_s=now_s + plan.retry_s(failures, left_s))


def missing(stores: dict[str, StoreTokens]) -> str:
    """Return the stores whose last attempt failed, with the reasons; "" for none."""
    return ", ".join(f"{url} ({store.reason})" for url, store in stores.items() if store.failures)
