"""Live display of a run or of a search in a notebook: an observer, a publishing thread, and IPython's display.

It requires a front end that can replace output, which is detected here.
"""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any
from uuid import uuid4

from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.core import tracebacks
from hopsml.core.newer_python import Self
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, HopsmlError
from hopsml.notebook import html, run_view
from hopsml.notebook.run_timeline import RunTimeline
from hopsml.notebook.view import View
from hopsml.search.dispatch.journal import SearchSnapshot

VARIABLE = Settings.progress.name
WISHES = ("", "auto", "display", "lines")
_KERNEL_SHELL, _KERNEL_PUBLISHER = "ZMQInteractiveShell", "ZMQDisplayPublisher"


def is_live() -> bool:
    """Return True if this process is a notebook's kernel whose display output reaches its front end.

    ``HOPSML_PROGRESS=lines`` selects plain lines there too, for consoles that cannot replace output.

    Raises:
        ArgumentError: ``HOPSML_PROGRESS`` has an unknown value.
    """
    shell = _shell()
    return permits_live_display(_classes(shell), _classes(getattr(shell, "display_pub", None)), SETTINGS.progress)


def permits_live_display(shell: Collection[str], publisher: Collection[str], wish: str) -> bool:
    """Return True if IPython's classes and the setting permit a live display.

    A terminal's IPython has another shell class, and so has the interpreter that Livy runs; within ``%%capture`` the
    publisher class is another one. Without a connected front end (nbconvert, a closed browser) the display is used as
    well: its output is stored in the notebook.

    Args:
        shell: names of the classes of IPython's shell.
        publisher: names of the classes of its display publisher.
        wish: value of ``HOPSML_PROGRESS``.

    Raises:
        ArgumentError: the value is unknown.
    """
    if wish not in WISHES:
        raise ArgumentError(f"{VARIABLE}={wish!r}: it must be one of auto, display, lines; unset it for auto")
    return wish != "lines" and _KERNEL_SHELL in shell and _KERNEL_PUBLISHER in publisher


def current_cell_number() -> int | None:
    """Return the number of the cell that is executed; None outside of IPython."""
    shell = _shell()
    return None if shell is None else int(shell.execution_count)


def _shell() -> Any:
    """Return IPython's shell if IPython is imported already and has one, else None."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None


def _classes(value: object) -> set[str]:
    """Return the names of a value's class and its base classes."""
    return {kind.__name__ for kind in type(value).__mro__}


log = logging.getLogger(__name__)

INTERVAL_S = 0.25  # minimum interval between two updates
CLOCK_S = 1.0  # maximum interval during the run, because its elapsed time is shown
LAST_S = 5.0  # timeout of the last update; the run's end does not wait for a slower front end
Bundle = dict[str, str]
Publish = Callable[[Bundle, bool], None]


# Weak on both sides: a display refers to its run's error, and this map must retain neither of them.
_failures: weakref.WeakKeyDictionary[HopsmlError, weakref.ref[Display]] = weakref.WeakKeyDictionary()


def _told(error: BaseException) -> None:
    """Remove an error from its display when the same cell renders it anyway."""
    reference = _failures.get(error) if isinstance(error, HopsmlError) else None
    shown = reference() if reference is not None else None
    if shown is not None and shown.cell is not None and shown.cell == current_cell_number():
        shown.republish_without_error()


tracebacks.on_render.append(_told)


class Display(ABC):
    """Live display of one run or search, which it observes, in one place of the notebook until the run ends.

    Events are only recorded on the thread that reports them. A thread of the display renders and publishes the view,
    and ends with the run; an error there ends the display, never the training.
    """

    immediate = True  # see ``hopsml.core.callbacks``

    def __init__(self, run_id: str, publish: Publish | None) -> None:
        """Create a display; ``show`` publishes it.

        Args:
            run_id: id of the run or search.
            publish: ``publish(bundle, update)`` shows a MIME bundle, in place of the last one if ``update``; None: in
                the output of the present cell.
        """
        self.run_id, self._publish = run_id, publish or cell_publisher()
        self._is_told = False
        self.cell = current_cell_number()  # cell that contains the display
        self._news, self._closed = threading.Event(), threading.Event()
        # A thread's output belongs to the cell in whose context it runs, whichever cell is executed at the time.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._show_changes,),
            name=f"hopsml-display-{run_id}",
            daemon=True,
        )

    @abstractmethod
    def view(self) -> View:
        """Return the content to show now: headline, progress, tables and messages, before rendering as HTML or text."""

    def show(self) -> Self:
        """Publish the first view from the calling cell, and start the thread that updates it."""
        self._publish(self.bundle(), False)
        self._thread.start()
        return self

    def close(self, error: BaseException | None) -> None:
        """Publish the final view; returns when it is shown, or after ``LAST_S`` seconds.

        The view contains the error. If the display's cell also renders that error, the view is published again without
        it.

        Args:
            error: what ended the run; None if it succeeded.
        """
        if isinstance(error, HopsmlError):  # other errors stay in both places
            _failures[error] = weakref.ref(self)
        self._closed.set()
        self._news.set()
        self._thread.join(LAST_S)

    def republish_without_error(self) -> None:
        """Publish the final view again without the error, which the cell shows next to it."""
        self._is_told = True
        self._publish(self.bundle(), True)

    def bundle(self) -> Bundle:
        """Return the present view by MIME type: plain text and HTML."""
        view = self.view()
        return {"text/plain": html.render_text(view), "text/html": html.render(view)}

    def _show_changes(self) -> None:
        """Publish the view after changes and at intervals, until the display is closed."""
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
        """Publish the present view in place of the last one."""
        self._news.clear()  # cleared first, so that later changes cause another update
        self._publish(self.bundle(), True)


class RunDisplay(Display):
    """Display of a run, an observer for ``RunState.observe``."""

    def __init__(self, state: RunState, name: str, run_dir: str, publish: Publish | None = None) -> None:
        """Create a display of a run.

        Args:
            state: state of the run.
            name: name that the caller gave the run.
            run_dir: URL of the run directory.
            publish: see ``Display``.
        """
        super().__init__(state.run_id, publish)
        self._state, self._name, self._run_dir = state, name, run_dir
        self._story = RunTimeline(state.began)
        self._story.enter_phase(state.phase, state.began)
        self._lock = threading.Lock()

    def __call__(self, change: Change) -> None:
        """Record a change; for the last one, ``closed``, return when it is shown."""
        try:
            with self._lock:
                self._story.handle(change, self._state.phase, time.time())
        except Exception:
            self._closed.set()  # no further changes are delivered
            raise
        finally:
            self._news.set()
        if change.kind == "closed":
            self.close(change.error)

    def view(self) -> View:
        """Return the view of the run's present state."""
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
    """Display of a search, an observer for ``SearchState.observe``."""

    def __init__(self, look: Callable[[], SearchSnapshot], publish: Publish | None = None) -> None:
        """Create a display of a search.

        Args:
            look: returns a snapshot of the search.
            publish: see ``Display``.
        """
        super().__init__(look().run_id, publish)
        self._look = look

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        """Record that something has changed; for the last change, ``closed``, return when it is shown."""
        self._news.set()
        if kind == "closed":
            self.close(self._look().error)

    def view(self) -> View:
        """Return the view of the search's present state."""
        return run_view.view_of_search(self._look(), is_told=self._is_told)


def cell_publisher() -> Publish:
    """Return a function that publishes MIME bundles in the output of the present cell."""
    from IPython.display import display, update_display

    name = uuid4().hex

    def publish(bundle: Bundle, update: bool) -> None:
        show: Any = update_display if update else display
        show(bundle, raw=True, display_id=name)

    return publish
