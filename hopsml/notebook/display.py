"""The hands of the display: an observer of a run, one thread that shows its view, and IPython's display."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol
from uuid import uuid4

from hopsml import tracebacks
from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.errors import HopsmlError
from hopsml.notebook import frontend, html, text
from hopsml.notebook.story import Story
from hopsml.notebook.view import RunView, view_of

log = logging.getLogger(__name__)

INTERVAL_S = 0.25  # between two updates, at least
CLOCK_S = 1.0  # between two updates, at most, while the run goes on: its clock is shown
LAST_S = 5.0  # for the last update; a front end that takes longer goes without, the run's end does not wait
Bundle = dict[str, str]
Publish = Callable[[Bundle, bool], None]


class Shown(Protocol):
    """A display that says why a run failed."""

    cell: int | None  # in which it stands

    def leave_out_error(self) -> None:
        """Show the end once more without the error, which is said beside it."""


# Weak on both sides: a display holds the error of its run, and neither shall be kept by this.
_failures: weakref.WeakKeyDictionary[HopsmlError, weakref.ref[Shown]] = weakref.WeakKeyDictionary()


def remember(error: BaseException | None, shown: Shown) -> None:
    """This display says why: should the same error be shown in its cell too, it shall not be said twice there."""
    if isinstance(error, HopsmlError):  # others are shown as anybody's are
        _failures[error] = weakref.ref(shown)


def _told(error: BaseException) -> None:
    reference = _failures.get(error) if isinstance(error, HopsmlError) else None
    shown = reference() if reference is not None else None
    if shown is not None and shown.cell is not None and shown.cell == frontend.cell():
        shown.leave_out_error()


tracebacks.on_render.append(_told)


class RunDisplay:
    """Shows one run in one place until its end; an observer for ``RunState.observe``.

    Changes arrive on the coordinator's thread and are only noted there. What is shown is made and sent by a thread of the
    display's own, which ends with the run; whatever goes wrong there ends the display, never the training.
    """

    immediate = True  # see ``hopsml.delivery``

    def __init__(self, state: RunState, title: str, run_dir: str, publish: Publish | None = None) -> None:
        """``publish(bundle, update)`` shows a mime bundle, in place of the last one if ``update``."""
        self._state, self._title, self._run_dir = state, title, run_dir
        self._publish = publish or in_notebook()
        self._story = Story(state.began)
        self._story.enter(state.phase, state.began)
        self._lock = threading.Lock()
        self._is_told = False
        self.cell = frontend.cell()
        self._news, self._closed = threading.Event(), threading.Event()
        # What a thread displays belongs to the cell in whose context it does so, whichever cell runs by then.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._show_changes,),
            name=f"hopsml-display-{state.run_id}",
            daemon=True,
        )

    def show(self) -> RunDisplay:
        """The first view, here and now: the display's place is where the run was started."""
        self._publish(self.bundle(), False)
        self._thread.start()
        return self

    def __call__(self, change: Change) -> None:
        """Note a change. The last one, ``closed``, returns when it is shown."""
        try:
            with self._lock:
                self._story.handle(change, self._state.phase, time.time())
        except Exception:
            self._closed.set()  # nothing more will be told
            raise
        finally:
            self._news.set()
        if change.kind == "closed":
            remember(change.error, self)
            self._closed.set()
            self._thread.join(LAST_S)

    def leave_out_error(self) -> None:
        """Show the end once more without the error, which is said beside it."""
        self._is_told = True
        self._publish(self.bundle(), True)

    def bundle(self) -> Bundle:
        """The run as it stands now, by mime type."""
        view = self.view()
        return {"text/plain": text.render(view), "text/html": html.render(view)}

    def view(self) -> RunView:
        """The run as it stands now."""
        state = self._state
        with self._lock:
            return view_of(
                self._story,
                dict(state.members),
                size=state.size,
                title=self._title,
                run_id=state.run_id,
                run_dir=self._run_dir,
                now=time.time(),
                is_told=self._is_told,
            )

    def _show_changes(self) -> None:
        try:
            while not self._closed.is_set():
                self._news.wait(CLOCK_S)
                if not self._closed.is_set():
                    self._publish_now()
                    self._closed.wait(INTERVAL_S)
            self._publish_now()
        except Exception:  # a display must not harm a training
            log.warning("the display of run %s ends", self._state.run_id, exc_info=True)

    def _publish_now(self) -> None:
        self._news.clear()  # before looking: what happens from now on is shown next time
        self._publish(self.bundle(), True)


def in_notebook() -> Publish:
    """Into the output of the cell that runs now."""
    from IPython.display import display, update_display

    name = uuid4().hex

    def publish(bundle: Bundle, update: bool) -> None:
        show: Any = update_display if update else display
        show(bundle, raw=True, display_id=name)

    return publish
