"""Rate limit for a trial's reports: at most so many a second are sent to the driver, the last one always; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from hopsml.search.messages import TrialReported

PER_SECOND = 50.0
AT_ONCE = 50.0  # size of the token bucket
MOST_WAITING = 32


@dataclass
class Thinner:
    """Rate limit for the reports of one trial: few are all passed on, of many in a short time a sample.

    A step that is reported again before it has been passed on is one report, with the newest values. Of a flood the driver
    sees steps that are less than a second old; a rung that is not among them counts as reached at the next one.
    """

    allowance: float = AT_ONCE
    at: float = 0.0
    waiting: dict[int, TrialReported] = field(default_factory=dict)

    def offer(self, report: TrialReported, now: float) -> list[TrialReported]:
        """Take a report; returns those that are to be sent to the driver now."""
        before = self.waiting.get(report.step)
        if before is not None:
            report = msgspec.structs.replace(report, metrics={**before.metrics, **report.metrics})
        self.waiting[report.step] = report
        due = self.due(now)
        if len(self.waiting) > MOST_WAITING:
            steps = list(self.waiting)
            for step in steps[1:-1:2]:
                del self.waiting[step]
        return due

    def due(self, now: float) -> list[TrialReported]:
        """The waiting reports that the rate limit allows to send now."""
        self.allowance = min(AT_ONCE, self.allowance + (now - self.at) * PER_SECOND)
        self.at = now
        passed: list[TrialReported] = []
        while self.waiting and self.allowance >= 1.0 - 1e-6:  # times are rounded
            self.allowance -= 1.0
            passed.append(self.waiting.pop(next(iter(self.waiting))))
        return passed

    def next_at(self) -> float | None:
        """When the next waiting report may be sent (same clock as ``now``); None when none waits."""
        return self.at + max(0.0, 1.0 - self.allowance) / PER_SECOND if self.waiting else None

    def rest(self) -> list[TrialReported]:
        """All waiting reports, whatever the rate limit: the trial has ended."""
        left = list(self.waiting.values())
        self.waiting.clear()
        return left
