"""A curve as inline SVG, in the colour of the text around it: the same in a light and in a dark theme; pure.

It holds no text: what stays of a page whose SVG a front end drops, as JupyterLab does with a notebook that is not trusted,
is the numbers beside it.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterator, Sequence

from hopsml.notebook.history import Point, thinned

MARGIN_PX = 3.0  # for the width of the line and the dot at its end
DRAWN = 160  # points


def svg(points: Sequence[Point], width_px: int, height_px: int, label: str, *, stretched: bool = False) -> str:
    """The line through the points, with a dot at the last one; "" for fewer than two with a finite value.

    ``label`` is for who cannot see it. ``stretched``: as wide as there is room, ``width_px`` is only its proportion.
    """
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if len(finite) < 2:
        return ""
    place = _Scale(finite, width_px, height_px)
    shown = points if len(points) <= DRAWN else thinned(points, DRAWN)
    line = "".join(f"M{' L'.join(place(*point) for point in piece)}" for piece in _pieces(shown))
    stroke = 'fill="none" stroke="currentColor" stroke-linecap="round" stroke-linejoin="round"'
    fixed = 'vector-effect="non-scaling-stroke"'
    size = (
        f'width="100%" height="{height_px}" preserveAspectRatio="none"'
        if stretched
        else (f'width="{width_px}" height="{height_px}"')
    )
    return (
        f'<svg viewBox="0 0 {width_px} {height_px}" {size} role="img" aria-label="{html.escape(label, quote=True)}" '
        f'style="display:block;overflow:visible;max-width:none;height:{height_px}px">'
        f'<path d="{place.floor}" {stroke} {fixed} stroke-width="1" opacity="0.25"></path>'
        f'<path d="{line}" {stroke} {fixed} stroke-width="1.5" opacity="0.85"></path>'
        f'<path d="M{place(*finite[-1])} l0.01 0" {stroke} {fixed} stroke-width="5"></path></svg>'
    )


class _Scale:
    """From values to pixels; a constant is drawn in the middle."""

    def __init__(self, points: Sequence[Point], width_px: int, height_px: int) -> None:
        self._left, right = points[0][0], points[-1][0]
        self._low, high = min(y for _, y in points), max(y for _, y in points)
        self._per_x = (width_px - 2 * MARGIN_PX) / ((right - self._left) or 1.0)
        self._span = high - self._low
        self._height = height_px - 2 * MARGIN_PX
        self.floor = f"M0 {height_px - 0.5} L{width_px} {height_px - 0.5}"

    def __call__(self, x: float, y: float) -> str:
        share = (y - self._low) / self._span if self._span else 0.5
        left = MARGIN_PX + (x - self._left) * self._per_x
        return f"{left:.1f} {MARGIN_PX + (1 - share) * self._height:.1f}"


def _pieces(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Stretches without NaN and infinity: the curve has a gap there."""
    for is_finite, piece in itertools.groupby(points, key=lambda point: math.isfinite(point[1])):
        if is_finite:
            found = list(piece)
            yield found if len(found) > 1 else found * 2
