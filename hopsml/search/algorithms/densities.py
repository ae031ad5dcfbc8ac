"""The kernel density estimator of BOHB: Falkner et al. 2018, section 4, over the unit cube.

A product of one kernel a parameter: normal where there is an order, that of Aitchison and Aitken 1976 (Biometrika 63) for
categories: 1 - h for the category itself, the rest of h shared by the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]


class Density:
    """A product kernel density over configurations.

    ``rows``: one a configuration; a column is a unit from 0 to 1, or the position of one of ``categories[column]``
    values. Bandwidths by the normal reference rule (Scott 1992), not below ``least``; for a category the spread is the
    root of the probability that two draws differ, and h is at most that of equal shares.
    """

    def __init__(self, rows: Array, categories: Sequence[int | None], least: float) -> None:
        import numpy as np

        self.rows, self.categories = rows, list(categories)
        rate = 1.06 * len(rows) ** (-1.0 / (4 + rows.shape[1]))
        self.widths = np.array([self._width(column, rate, least) for column in range(rows.shape[1])])

    def _width(self, column: int, rate: float, least: float) -> float:
        import numpy as np

        count = self.categories[column]
        if count is None:
            return max(least, rate * float(self.rows[:, column].std()))
        if count == 1:
            return 0.0
        shares = np.bincount(self.rows[:, column].astype(int), minlength=count) / len(self.rows)
        spread = float(np.sqrt(max(1.0 - float(shares @ shares), 0.0)))
        return min(max(least, rate * spread), (count - 1) / count)

    def log(self, points: Array) -> Array:
        """The logarithm of the estimated density at each row of ``points``."""
        import numpy as np
        from scipy.special import logsumexp

        total = np.zeros((len(points), len(self.rows)))
        for column, (count, width) in enumerate(zip(self.categories, self.widths, strict=True)):
            ours, theirs = points[:, column][:, None], self.rows[:, column][None, :]
            if count is None:
                total += -0.5 * ((ours - theirs) / width) ** 2 - np.log(width * np.sqrt(2.0 * np.pi))
            elif count > 1:
                total += np.where(ours == theirs, np.log(1.0 - width), np.log(width / (count - 1)))
        result: Array = logsumexp(total, axis=1) - np.log(len(self.rows))
        return result

    def sample(self, count: int, draw: np.random.Generator, factor: float) -> Array:
        """Draw points around the rows with bandwidths ``factor`` times as wide, truncated to the unit cube."""
        import numpy as np
        from scipy.special import ndtr, ndtri

        centres = self.rows[draw.integers(len(self.rows), size=count)]
        points = np.empty_like(centres)
        for column, (values, width) in enumerate(zip(self.categories, self.widths, strict=True)):
            centre = centres[:, column]
            if values is None:
                wide = width * factor
                low, high = ndtr(-centre / wide), ndtr((1.0 - centre) / wide)  # a normal one, cut off at the ends
                points[:, column] = np.clip(centre + wide * ndtri(draw.uniform(low, high)), 0.0, 1.0)
            else:
                anew = draw.random(count) < min(width * factor, 1.0)
                points[:, column] = np.where(anew, draw.integers(values, size=count), centre)
        return points
