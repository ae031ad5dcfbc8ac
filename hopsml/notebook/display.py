"""The display of a run or of a search in a notebook: an observer, a thread that shows its view, IPython's display."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self
from uuid import uuid4

from hopsml import tracebacks
from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.errors import HopsmlError
from hopsml.notebook import frontend, html, run_view, search_view, text
from hopsml.notebook.story import Story
from hopsml.notebook.view import View
from hopsml.search.dispatch.snapshot import SearchSnapshot

log = logging.getLogger(__name__)

INTERVAL_S = 0.25  # between two updates, at least
CLOCK_S = 1.0  # between two updates, at most, while the run goes on: its clock is shown
LAST_S = 5.0  # for the last update; a front end that takes longer goes without, the run's end does not wait
Bundle = dict[str, str]
Publish = Callable[[Bundle, bool], None]


# Weak on both sides: a display holds the error of its run, and neither shall be kept by this.
_failures: weakref.WeakKeyDictionary[HopsmlError, weakref.ref[Display]] = weakref.WeakKeyDictionary()


def _told(error: BaseException) -> None:
    reference = _failures.get(error) if isinstance(error, HopsmlError) else None
    shown = reference() if reference is not None else None
    if shown is not None and shown.cell is not None and shown.cell == frontend.cell():
        shown.leave_out_error()


tracebacks.on_render.append(_told)


class Display(ABC):
    """Shows one run, or one search, in one place until its end; an observer of it.

    What happens is only noted by whoever tells it. What is shown is made and sent by a thread of the display's own, which
    ends with the run; whatever goes wrong there ends the display, never the training.
    """

    immediate = True  # see ``hopsml.delivery``

    def __init__(self, run_id: str, publish: Publish | None) -> None:
        """``publish(bundle, update)`` shows a mime bundle, in place of the last one if ``update``."""
        self.run_id, self._publish = run_id, publish or in_notebook()
        self._is_told = False
        self.cell = frontend.cell()  # in which it stands
        self._news, self._closed = threading.Event(), threading.Event()
        # What a thread displays belongs to the cell in whose context it does so, whichever cell runs by then.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._show_changes,),
            name=f"hopsml-display-{run_id}",
            daemon=True,
        )

    @abstractmethod
    def view(self) -> View:
        """What is to be shown at this moment."""

    def show(self) -> Self:
        """Show the first view, here and now: the display's place is where the run was started."""
        self._publish(self.bundle(), False)
        self._thread.start()
        return self

    def close(self, error: BaseException | None) -> None:
        """Show the end; returns when it is shown, or after ``LAST_S``.

        The display says why: should the same error be shown in its cell too, it shall not be said twice there.
        """
        if isinstance(error, HopsmlError):  # others are shown as anybody's are
            _failures[error] = weakref.ref(self)
        self._closed.set()
        self._news.set()
        self._thread.join(LAST_S)

    def leave_out_error(self) -> None:
        """Show the end once more without the error, which is said beside it."""
        self._is_told = True
        self._publish(self.bundle(), True)

    def bundle(self) -> Bundle:
        """The view at this moment, by mime type: text and HTML."""
        view = self.view()
        return {"text/plain": text.render(view), "text/html": html.render(view)}

    def _show_changes(self) -> None:
        try:
            while not self._closed.is_set():
                self._news.wait(CLOCK_S)
                if not self._closed.is_set():
                    self._publish_now()
                    self._closed.wait(INTERVAL_S)
            self._publish_now()
        except Exception:  # a display must not harm a training
            log.warning("the display of %s ends", self.run_id, exc_info=True)

    def _publish_now(self) -> None:
        self._news.clear()  # before looking: what happens from now on is shown next time
        self._publish(self.bundle(), True)


class RunDisplay(Display):
    """The display of a run: an observer for ``RunState.observe``."""

    def __init__(self, state: RunState, name: str, run_dir: str, publish: Publish | None = None) -> None:
        """``name``: as the caller called the run; ``run_dir``: its URL."""
        super().__init__(state.run_id, publish)
        self._state, self._name, self._run_dir = state, name, run_dir
        self._story = Story(state.began)
        self._story.enter(state.phase, state.began)
        self._lock = threading.Lock()

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
            self.close(change.error)

    def view(self) -> View:
        """What is to be shown of the run at this moment."""
        state = self._state
        with self._lock:
            return run_view.view_of(
                self._story,
                dict(state.members),
                size=state.size,
                name=self._name,
                run_id=state.run_id,
                run_dir=self._run_dir,
                now=time.time(),
                is_told=self._is_told,
            )


class SearchDisplay(Display):
    """The display of a search: an observer for ``SearchState.observe``."""

    def __init__(self, look: Callable[[], SearchSnapshot], publish: Publish | None = None) -> None:
        """``look`` gives how the search stands."""
        super().__init__(look().run_id, publish)
        self._look = look

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        """Note that something has happened. The last time, ``closed``, returns when it is shown."""
        self._news.set()
        if kind == "closed":
            self.close(self._look().error)

    def view(self) -> View:
        """What is to be shown of the search at this moment."""
        return search_view.view_of(self._look(), is_told=self._is_told)


def in_notebook() -> Publish:
    """Into the output of the cell that runs now."""
    from IPython.display import display, update_display

    name = uuid4().hex

    def publish(bundle: Bundle, update: bool) -> None:
        show: Any = update_display if update else display
        show(bundle, raw=True, display_id=name)

    return publish
