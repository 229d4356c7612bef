"""How each method looks: its name in tables, and its one colour in every picture, by its card.

The colours of our cards keep a contrast of 3 to a white page. Any two of them can be told apart
with normal and with colour-blind eyes, and those of the five methods that stand side by side most
often at a glance; `tests/report/test_looks.py` measures it.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from soba.adapt.soba import SOBA
from soba.adapt.soba_plus import SOBAPlus
from soba.registry import card, list_methods

_SPARE = ("#ce2391", "#a833b2", "#a96830", "#81323d", "#514862", "#9c6cfd")
_DASHES = ("-", ":", "-.", (0, (6, 1.5)))  # of lines that share a colour, one after the other
_HEAVY = (SOBA.card.name, SOBAPlus.card.name)  # what the others are compared with
_CONTROL = ("--", *_DASHES)  # dashed, so that what it covers can be seen through it


def title_of(method: str) -> str:
    """What people call a method; one that is not known here goes by its own name."""
    return card(method).title if method in list_methods() else _printed_titles().get(method, method)


def colour_of(method: str) -> str:
    """A method's colour; one that has no colour of its own has the same in every picture, too.

    Examples
    --------
    >>> colour_of("soba+"), colour_of("my method") == colour_of("my method")
    ('#0a44cc', True)
    """
    spare = _SPARE[zlib.crc32(method.encode()) % len(_SPARE)]
    return (card(method).colour if method in list_methods() else "") or spare


def _printed_titles() -> dict[str, str]:
    """Name in the paper's tables -> title, of methods that have another name here."""
    papers = [card(name).paper for name in list_methods()]
    return {p.printed_name: p.printed_title for p in papers if p.printed_name is not None}


def line_styles(methods: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """How to draw each line, by its label, for `axes.plot`; `methods` are label -> method.

    Rows of one method share its colour and are told apart by their dashes. Zero-shot, which the
    others are measured against, lies on top of them.
    """
    styles = {}
    used: Counter[str] = Counter()
    for label, method in methods.items():
        control, colour = method == "zero-shot", colour_of(method)
        dashes = _CONTROL if control else _DASHES
        styles[label] = {
            "label": label,
            "color": colour,
            "linestyle": dashes[used[colour] % len(dashes)],
            "linewidth": 1.6 if method in _HEAVY else 1.3,
            "zorder": 4 if control else 3 if method in _HEAVY else 2,
        }
        used[colour] += 1
    return styles


def line_style(method: str) -> dict[str, Any]:
    """How to draw the only line of a method."""
    return line_styles({title_of(method): method})[title_of(method)]
