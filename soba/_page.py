"""One self-contained HTML page: style, pictures and thumbnails inside the file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from soba._files import replacing
from soba.encode.preprocess import to_rgb

_STYLE = """
:root { --ink: #1c2430; --soft: #667085; --line: #dfe3ea; --good: #1a7f4b; --bad: #c0392b;
        --tint: #f5f8fc; --accent: #2463ab; }
* { box-sizing: border-box; }
body { color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
       margin: 0 auto; max-width: 74rem; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { border-top: 1px solid var(--line); font-size: 1.2rem; margin: 2.2rem 0 .4rem;
     padding-top: 1.2rem; }
h3 { font-size: 1rem; margin: 1rem 0 .4rem; }
p { margin: .3rem 0 .8rem; max-width: 46rem; } .soft, small { color: var(--soft); }
a { color: var(--accent); } img { max-width: 100%; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem; text-align: right;
         vertical-align: baseline; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.pinned th:first-child, .pinned td:first-child { background: #fff; left: 0; position: sticky; }
tr.quoted td, tr.difference td { color: var(--soft); font-size: .9em; padding-block: .1rem; }
th.words, td.words { min-width: 13rem; text-align: left; white-space: normal; }
.panels { display: grid; gap: 1rem;
          grid-template-columns: repeat(auto-fit, minmax(min(100%, var(--least)), 1fr)); }
.panels img { display: block; width: 100%; }
.warning { background: #fdf3f2; border-left: 4px solid var(--bad); margin: 1rem 0;
           overflow-wrap: anywhere; padding: .6rem 1rem; }
.warning p { margin: .2rem 0; } .warning ul { margin: .3rem 0; padding-left: 1.2rem; }
summary { cursor: pointer; }
thead th { border-bottom: 2px solid var(--ink); }
tr.total td { border-top: 2px solid var(--line); }
.good { color: var(--good); } .bad { color: var(--bad); }
.best { font-weight: 700; } .second { text-decoration: underline; text-underline-offset: 3px; }
.grid { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(6.8rem, 1fr)); }
.strip { display: flex; flex-wrap: wrap; gap: .35rem; }
figure { margin: 0; } figcaption { font-size: .8rem; line-height: 1.3; overflow-wrap: anywhere; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: .4rem; }
.card img { border-radius: .3rem; display: block; margin-bottom: .25rem; width: 100%; }
.strip img { border: 3px solid transparent; border-radius: .35rem; width: 4.1rem; }
.strip img.wrong { border-color: var(--bad); } .strip img.right { border-color: var(--good); }
.changed { background: #eef6ff; border-color: #8ab8ea; } s { color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.number { background: var(--tint); border-radius: .5rem; flex: 1 1 9rem; padding: .7rem 1rem; }
.number b { display: block; font-size: 1.5rem; }
@media (max-width: 34rem) { .pinned td:first-child small { display: block; } }
"""


@dataclass(frozen=True)
class Picture:
    """What a panel shows: `draw` makes a matplotlib figure that is so many inches wide."""

    draw: Callable[[float], Any]
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class _Size:
    inches: float  # of a figure, such that 8 points are 11 pixels where it is shown
    least: str  # width of a column, below which there are fewer of them
    screen: str  # the narrowest on which such a figure is readable


# Pictures side by side -> their size on a wide screen.
_SIZES = {
    1: _Size(11.1, "100%", "68rem"),
    2: _Size(5.5, "30rem", "34rem"),
    3: _Size(3.6, "20rem", "0"),
}
NARROW = _SIZES[3].inches
_DPI = 180


def write_page(path: Path, title: str, body: str) -> None:
    """A whole page, or none: the file is replaced when it is ready."""
    with replacing(path) as temporary:
        write_text(temporary, title, body)


def write_text(path: Path, title: str, body: str) -> None:
    """The page, into a file that its owner replaces when it is ready."""
    content = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )
    path.write_text(content, encoding="utf-8", errors="replace")


def thumbnail(image: Image.Image, size: int = 112, *, alt: str = "", kind: str = "") -> str:
    """A small picture as an `<img>` that carries its own bytes."""
    small = to_rgb(image)
    small.thumbnail((size, size))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=82)
    return _img(buffer.getvalue(), "jpeg", alt, kind)


def panels(pictures: Sequence[Picture]) -> str:
    """Pictures side by side that fill the page: few of them large, many of them small.

    A figure does not flow as text does. So a large one is drawn for narrower screens, too, and its
    text stays as large there as that around it.
    """
    columns = {1: 1, 2: 2, 4: 2}.get(len(pictures), 3)
    drawings = "".join(_panel(picture, columns) for picture in pictures)
    return f'<div class="panels" style="--least: {_SIZES[columns].least}">{drawings}</div>'


def _panel(picture: Picture, columns: int) -> str:
    sizes = [size for count, size in _SIZES.items() if count >= columns]
    *larger, narrow = [(size.screen, _png(picture.draw(size.inches))) for size in sizes]
    sources = "".join(
        f'<source media="(min-width: {screen})" srcset="{_data(content, "png")}">'
        for screen, content in larger
    )
    caption = f"<figcaption>{html.escape(picture.caption)}</figcaption>" if picture.caption else ""
    image = _img(narrow[1], "png", picture.alt, "")
    return f"<figure><picture>{sources}{image}</picture>{caption}</figure>"


def table(
    headings: list[str],
    rows: list[list[str]],
    *,
    total: bool = False,
    caption: str = "",
    kinds: list[str] | None = None,
    words: frozenset[int] = frozenset(),
) -> str:
    """An HTML table of ready cells; the last row is set apart where it is a total.

    `kinds` are the rows' CSS classes; with them the first column stays in sight. The columns
    numbered in `words` hold text that may wrap.
    """
    style = {column: ' class="words"' for column in words}
    head = "".join(f"<th{style.get(k, '')}>{cell}</th>" for k, cell in enumerate(headings))
    lines = []
    for number, row in enumerate(rows):
        last = total and number == len(rows) - 1
        kind = "total" if last else kinds[number] if kinds else ""
        cells = "".join(f"<td{style.get(k, '')}>{cell}</td>" for k, cell in enumerate(row))
        lines.append(f'<tr class="{kind}">{cells}</tr>')
    note = f"<caption>{caption}</caption>" if caption else ""
    pinned = ' class="pinned"' if kinds is not None else ""
    return (
        f'<div class="wide"><table{pinned}>{note}<thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _png(figure: Any) -> bytes:
    """A matplotlib figure that lays itself out; it is closed."""
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    plt.close(figure)
    return buffer.getvalue()


def _img(content: bytes, kind: str, alt: str, css: str) -> str:
    style = f' class="{css}"' if css else ""
    return f'<img{style} alt="{html.escape(alt, quote=True)}" src="{_data(content, kind)}">'


def _data(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
