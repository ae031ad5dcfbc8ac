"""Messages between the driver and a trial slot (lane), the process that runs one trial after another.

They are sent as opaque bytes: driver -> agent -> lane and back (``protocol.DriverMessage``,
``worker_events.WorkerMessage``). Both sides have authenticated by then, so configurations and returned values may be
pickled.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hopsml.core.decoding import checked


class TrialMessage(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of all messages; ``number`` and ``attempt`` identify the trial and its attempt."""

    number: int
    attempt: int


class RunTrial(TrialMessage, frozen=True, tag="run"):
    """Driver -> lane: run this trial after those that were sent before."""

    trial_id: str
    config: bytes  # pickled dict
    metric: str = ""  # key of the searched metric; "": the function returns a single number
    isolated: bool = False  # run in a separate process
    resume_from: str = ""  # id of the trial from whose newest checkpoint it starts
    resume_step: int = -1  # step of that checkpoint, -1: unknown; the lane waits until it can be read
    done_step: int = -1  # reports up to this step were made by an earlier part of the same trial
    judged: bool = False  # the driver answers a report that waits for its verdict by EndTrial or GoOn


class EndTrial(TrialMessage, frozen=True, tag="end"):
    """Driver -> lane: end a trial, or withdraw it if it has not begun.

    With ``how`` "stop" or "pause" the trial's next report raises the exception that ends it; "withdraw": it must not
    begin. With ``deadline_s`` > 0 its process is killed if it has not ended after that many seconds.
    """

    how: str
    deadline_s: float = 0.0


class GoOn(TrialMessage, frozen=True, tag="go_on"):
    """Driver -> lane: continue the trial, whose report of ``step`` waits for the verdict."""

    step: int


class TrialBegan(TrialMessage, frozen=True, tag="began"):
    """Lane -> driver: the user's function is being called, in process ``pid``."""

    pid: int


class TrialReported(TrialMessage, frozen=True, tag="reported"):
    """Lane -> driver: values that the function reported; reports without a step are counted instead."""

    step: int
    metrics: dict[str, float | int | str | bool | None]
    waits: bool = False  # the function waits for the verdict, for a limited time


class TrialEnded(TrialMessage, frozen=True, tag="ended"):
    """Lane -> driver: an attempt has ended.

    ``how`` is finished | stopped | paused | failed | died | withdrawn. "failed": the function raised, or returned a
    value that cannot be used; "died": its process ended in another way, which may be the lane's fault. With
    ``lacks_metric`` the function returned without a value of the metric, as another attempt would; ``names`` has the
    names of what it returned.
    """

    how: str
    outputs: bytes = b""  # pickled return value of a finished one
    error: str = ""  # cause of a failure, one line
    seconds: float = 0.0
    checkpoint_step: int = -1  # newest complete checkpoint that it has written
    lacks_metric: bool = False
    names: tuple[str, ...] = ()


ToLane = RunTrial | EndTrial | GoOn
ToDriver = TrialBegan | TrialReported | TrialEnded

encode = msgspec.msgpack.Encoder().encode
decode_for_lane: Callable[[bytes], ToLane] = checked(msgspec.msgpack.Decoder(ToLane).decode)
decode_for_driver: Callable[[bytes], ToDriver] = checked(msgspec.msgpack.Decoder(ToDriver).decode)
