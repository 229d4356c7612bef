"""Icons to try a server with, drawn when they are asked for."""

from __future__ import annotations

import io
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from soba.datasets.icons import IconSet

_CLASSES = 40
_PER_CLASS = 12


class ExampleIcons(NamedTuple):
    """Icons of one domain, in an order of no meaning."""

    drawn: IconSet
    order: tuple[int, ...]

    @property
    def labels(self) -> list[str]:
        """What each of them shows."""
        assert self.drawn.labels is not None
        return [self.drawn.class_names[self.drawn.labels[place]] for place in self.order]


@cache
def example_icons() -> ExampleIcons | None:
    """Shifted icons of some classes; None where the fonts are not installed."""
    try:
        from soba.datasets.icons import class_names, icons

        names = class_names(families=4)
        drawn = icons("v2", _PER_CLASS, classes=names[:: len(names) // _CLASSES][:_CLASSES])
    except (ImportError, OSError):
        return None
    order = np.random.default_rng(0).permutation(len(drawn.keys))
    return ExampleIcons(drawn, tuple(order.tolist()))


@lru_cache(maxsize=_CLASSES * _PER_CLASS)
def example_png(number: int) -> bytes:
    """One of them."""
    icons = example_icons()
    assert icons is not None
    content = io.BytesIO()
    icons.drawn.image(icons.order[number]).save(content, "PNG")
    return content.getvalue()
