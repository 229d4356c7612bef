"""Answers of `soba classify` -> a .csv, .jsonl or .html file, a row at a time."""

from __future__ import annotations

import csv
import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from soba.bench import page
from soba.datasets.base import ImageSet

FORMATS = (".csv", ".jsonl", ".html")
_GALLERY = 600  # pictures in the page; the rest is counted


@dataclass(frozen=True)
class Row:
    """One image's answer."""

    index: int
    image: str
    top: list[tuple[str, float]]  # class and probability, likeliest first
    zero_shot: str
    zero_shot_chance: float


class Writer(Protocol):
    def add(self, row: Row) -> None: ...

    def close(self) -> None: ...


def writer(suffix: str, path: Path, images: ImageSet) -> Writer:
    if suffix == ".html":
        return _Gallery(path, images)
    return _Csv(path) if suffix == ".csv" else _JsonLines(path)


class _Csv:
    """image, label, probability, zero-shot's answer beside it, then the other candidates."""

    def __init__(self, path: Path) -> None:
        # Names that are no valid text keep their bytes.
        self._file = path.open("w", newline="", encoding="utf-8", errors="surrogateescape")
        self._csv = csv.writer(self._file)
        self._begun = False

    def add(self, row: Row) -> None:
        if not self._begun:
            more = [
                c for k in range(2, len(row.top) + 1) for c in (f"label_{k}", f"probability_{k}")
            ]
            lead = ["image", "label", "probability", "zero_shot", "zero_shot_probability"]
            self._csv.writerow([*lead, *more])
            self._begun = True
        (label, chance), *others = row.top
        cells = [row.image, label, f"{chance:.4f}", row.zero_shot, f"{row.zero_shot_chance:.4f}"]
        self._csv.writerow([*cells, *(c for name, p in others for c in (name, f"{p:.4f}"))])

    def close(self) -> None:
        self._file.close()


class _JsonLines:
    def __init__(self, path: Path) -> None:
        # Names that are no valid text become JSON escapes.
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace")

    def add(self, row: Row) -> None:
        label, chance = row.top[0]
        line = {
            "image": row.image,
            "label": label,
            "probability": round(chance, 4),
            "top": [[name, round(p, 4)] for name, p in row.top],
            "zero_shot": {"label": row.zero_shot, "probability": round(row.zero_shot_chance, 4)},
        }
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _Gallery:
    """A page of pictures by answer; those that zero-shot CLIP calls otherwise are marked."""

    def __init__(self, path: Path, images: ImageSet) -> None:
        self._path, self._images = path, images
        self._cards: dict[str, list[str]] = {}
        self._shown = self._total = self._changed = 0

    def add(self, row: Row) -> None:
        label, chance = row.top[0]
        self._total += 1
        changed = label != row.zero_shot
        self._changed += changed
        if self._shown >= _GALLERY:
            return
        self._shown += 1
        plain = f"<br><s>{html.escape(row.zero_shot)}</s>" if changed else ""
        self._cards.setdefault(label, []).append(
            f'<figure class="card{" changed" if changed else ""}">'
            f"{page.thumbnail(self._images.image(row.index), alt=label)}"
            f"<figcaption>{chance:.0%} <small>{html.escape(Path(row.image).name)}</small>"
            f"{plain}</figcaption></figure>"
        )

    def close(self) -> None:
        groups = "".join(
            f"<h2>{html.escape(label)} <small>{len(cards)}</small></h2>"
            f"<div class='grid'>{''.join(cards)}</div>"
            for label, cards in sorted(self._cards.items())
        )
        hidden = self._total - self._shown
        rest = f" The first {self._shown} are shown." if hidden else ""
        body = (
            f"<h1>{self._total} images</h1><p class='soft'>{self._changed} answered otherwise than "
            f"by zero-shot CLIP: blue, its answer struck out.{rest}</p>{groups}"
        )
        page.write_page(self._path, "soba classify", body)
