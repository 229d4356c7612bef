"""One self-contained HTML page: style, pictures and thumbnails inside the file."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import Any

from PIL import Image

from soba._files import replacing

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
          grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
.panels img { display: block; width: 100%; }
.warning { background: #fdf3f2; border-left: 4px solid var(--bad); margin: 1rem 0;
           overflow-wrap: anywhere; padding: .6rem 1rem; }
.warning p { margin: .2rem 0; } .warning ul { margin: .3rem 0; padding-left: 1.2rem; }
summary { cursor: pointer; }
thead th { border-bottom: 2px solid var(--ink); }
tr.total td { border-top: 2px solid var(--line); font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
.best { font-weight: 700; } .second { text-decoration: underline; text-underline-offset: 3px; }
.grid { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(6.8rem, 1fr)); }
.strip { display: flex; flex-wrap: wrap; gap: .35rem; }
figure { margin: 0; } figcaption { font-size: .8rem; line-height: 1.3; overflow-wrap: anywhere; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: .4rem; }
.card img { border-radius: .3rem; display: block; margin-bottom: .25rem; width: 100%; }
.strip img { border: 3px solid transparent; border-radius: .35rem; width: 4.2rem; }
.strip img.wrong { border-color: var(--bad); } .strip img.right { border-color: var(--good); }
.changed { background: #eef6ff; border-color: #8ab8ea; } s { color: var(--soft); }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.number { background: var(--tint); border-radius: .5rem; flex: 1 1 9rem; padding: .7rem 1rem; }
.number b { display: block; font-size: 1.5rem; }
"""


def write_page(path: Path, title: str, body: str) -> None:
    """A whole page, or none: the file is replaced when it is ready."""
    content = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8", errors="replace")


def thumbnail(image: Image.Image, size: int = 112, *, alt: str = "", kind: str = "") -> str:
    """A small picture as an `<img>` that carries its own bytes."""
    small = image.convert("RGB")
    small.thumbnail((size, size))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=82)
    return _img(buffer.getvalue(), "jpeg", alt, kind)


def drawing(figure: Any, alt: str, *, dpi: int = 110, crop: bool = True) -> str:
    """A matplotlib figure as an `<img>`; the figure is closed.

    `crop=False` is for figures that lay themselves out: half the time, and all of one size.
    """
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight" if crop else None)
    plt.close(figure)
    return _img(buffer.getvalue(), "png", alt, "")


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


def _img(content: bytes, kind: str, alt: str, css: str) -> str:
    data = base64.b64encode(content).decode()
    style = f' class="{css}"' if css else ""
    return (
        f'<img{style} alt="{html.escape(alt, quote=True)}" src="data:image/{kind};base64,{data}">'
    )
