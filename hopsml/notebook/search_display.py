"""The hands of a search's display: an observer, and one thread that shows how the search stands, in one place."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from typing import Any

from hopsml.notebook import frontend, search_html
from hopsml.notebook.display import CLOCK_S, INTERVAL_S, LAST_S, Bundle, Publish, in_notebook, remember
from hopsml.notebook.search_view import Standing, as_text, view_of

log = logging.getLogger(__name__)


class SearchDisplay:
    """Shows one search until its end; what goes wrong here ends the display, never the search."""

    immediate = True  # see ``hopsml.delivery``

    def __init__(self, look: Callable[[], Standing], publish: Publish | None = None) -> None:
        """``look`` gives how the search stands; ``publish(bundle, update)`` shows a mime bundle."""
        self._look, self._publish = look, publish or in_notebook()
        self._news, self._closed = threading.Event(), threading.Event()
        self._is_told = False
        self.cell = frontend.cell()
        # What a thread displays belongs to the cell in whose context it does so, whichever cell runs by then.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._show,), name="hopsml-search-display", daemon=True
        )

    def show(self) -> SearchDisplay:
        """The first view, here and now."""
        self._publish(self.bundle(), False)
        self._thread.start()
        return self

    def __call__(self, what: str, facts: dict[str, Any]) -> None:
        """Something has happened. The last time, ``closed``, returns when it is shown."""
        self._news.set()
        if what == "closed":
            remember(self._look().error, self)
            self._closed.set()
            self._thread.join(LAST_S)

    def leave_out_error(self) -> None:
        """Show the end once more without the error, which is said beside it."""
        self._is_told = True
        self._publish(self.bundle(), True)

    def bundle(self) -> Bundle:
        """The search as it stands now, by mime type."""
        view = view_of(self._look(), is_told=self._is_told)
        return {"text/plain": as_text(view), "text/html": search_html.render(view)}

    def _show(self) -> None:
        try:
            while not self._closed.is_set():
                self._news.wait(CLOCK_S)
                if not self._closed.is_set():
                    self._news.clear()
                    self._publish(self.bundle(), True)
                    self._closed.wait(INTERVAL_S)
            self._publish(self.bundle(), True)
        except Exception:  # a display must not harm a search
            log.warning("the display of a search ends", exc_info=True)
