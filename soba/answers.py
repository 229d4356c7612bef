"""What a classifier answers, and files of answers: .csv, .jsonl, .parquet, or an .html gallery."""

from __future__ import annotations

import csv
import html
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from soba._files import replacing

FORMATS = (".csv", ".jsonl", ".parquet", ".html")
_GALLERY = 600  # pictures in the page; the rest is counted


@dataclass(frozen=True)
class Answer:
    """One image's answer, or why there is none.

    Attributes
    ----------
    image
        The path, or for a picture in memory its place in the stream: "image 0".
    label, probability
        The likeliest class.
    top
        (label, probability) of the likeliest classes, best first.
    zero_shot, zero_shot_probability
        What plain CLIP says.
    error
        Why the image could not be read; all but `image` is empty then.
    id
        What the image is known by where it is learned from; its content gives it, unless it has
        another.
    """

    image: str
    label: str = ""
    probability: float = 0.0
    top: tuple[tuple[str, float], ...] = ()
    zero_shot: str = ""
    zero_shot_probability: float = 0.0
    error: str = ""
    id: int | None = None


@dataclass(frozen=True)
class ServedAnswer(Answer):
    """An answer of a server, and what it says besides; in feedback it is called by its `name`."""

    name: str = ""
    changed: bool = False  # zero-shot says otherwise
    unsure: bool = False  # less likely than was asked for
    version: int = -1
    answers_by: str = ""  # "adapted", or "zero-shot" where the guard failed
    stale: bool = False  # the database was away: others may have learned since

    @classmethod
    def of(cls, answer: Mapping[str, Any], said: Mapping[str, Any], image: str) -> ServedAnswer:
        """From the JSON of one answer and of the whole."""
        if answer["error"] is not None:
            return cls(image, error=answer["error"], name=answer["id"])
        of_all = {name: said[name] for name in ("version", "answers_by", "stale")}
        return cls(
            image,
            answer["label"],
            answer["probability"],
            tuple((each["label"], each["probability"]) for each in answer["top"]),
            answer["zero_shot"]["label"],
            answer["zero_shot"]["probability"],
            id=int(answer["sample"], 16),
            name=answer["id"],
            changed=answer["changed"],
            unsure=answer["unsure"],
            **of_all,
        )


class AnswerWriter(Protocol):
    """What answers are given to, one after the other."""

    def add(self, answer: Answer) -> None: ...

    def close(self) -> None: ...


def write_answers(path: str | os.PathLike[str], answers: Iterable[Answer], *, top: int = 3) -> None:
    """Write answers to a file of one of the `FORMATS`, which appears when the last one is in it.

    `top` is the number of candidates that a .csv has columns for.
    """
    target = Path(path)
    check_format(target)
    with (
        replacing(target) as temporary,
        closing(answer_writer(target.suffix, temporary, top)) as file,
    ):
        for answer in answers:
            file.add(answer)


def check_format(path: Path) -> None:
    """Refuse a file whose name does not say how answers are to be written to it."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: answers are written as {', '.join(FORMATS)}")
    if path.suffix == ".parquet":
        from soba.encode._parquet import pyarrow

        pyarrow()  # whose absence is better known before the work than after it


def answer_writer(suffix: str, path: Path, top: int) -> AnswerWriter:
    """What writes answers of `top` candidates to a file of this kind."""
    if suffix == ".html":
        return _Gallery(path)
    if suffix == ".parquet":
        from soba._parquet_answers import ParquetAnswers

        return ParquetAnswers(path)
    return _Csv(path, top) if suffix == ".csv" else _JsonLines(path)


class _Csv:
    """image, label, probability, zero-shot's answer beside it, the other candidates, the error."""

    def __init__(self, path: Path, top: int) -> None:
        self._top = top
        # Names that are no valid text keep their bytes.
        self._file = path.open("w", newline="", encoding="utf-8", errors="surrogateescape")
        more = [c for k in range(2, top + 1) for c in (f"label_{k}", f"probability_{k}")]
        lead = ["image", "label", "probability", "zero_shot", "zero_shot_probability"]
        columns = [*lead, *more, "error"]
        self._csv = csv.DictWriter(self._file, columns, restval="")
        self._csv.writeheader()

    def add(self, answer: Answer) -> None:
        if answer.error:
            self._csv.writerow({"image": answer.image, "error": answer.error})
            return
        cells = {
            "image": answer.image,
            "label": answer.label,
            "probability": f"{answer.probability:.4f}",
            "zero_shot": answer.zero_shot,
            "zero_shot_probability": f"{answer.zero_shot_probability:.4f}",
        }
        for place, (label, probability) in enumerate(answer.top[1 : self._top], 2):
            cells |= {f"label_{place}": label, f"probability_{place}": f"{probability:.4f}"}
        self._csv.writerow(cells)

    def close(self) -> None:
        self._file.close()


class _JsonLines:
    def __init__(self, path: Path) -> None:
        # Names that are no valid text become JSON escapes.
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace")

    def add(self, answer: Answer) -> None:
        best = (answer.label, round(answer.probability, 4))
        plain = (answer.zero_shot, round(answer.zero_shot_probability, 4))
        nothing = (None, None)
        label, probability = nothing if answer.error else best
        zero_shot, zero_shot_probability = nothing if answer.error else plain
        line = {
            "image": answer.image,
            "label": label,
            "probability": probability,
            "top": [[name, round(chance, 4)] for name, chance in answer.top],
            "zero_shot": {"label": zero_shot, "probability": zero_shot_probability},
            "error": answer.error or None,
        }
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _Gallery:
    """A page of pictures by answer; those that zero-shot CLIP calls otherwise are marked.

    Images that could not be read stand at the end, each with the reason. Pictures that lie in no
    file, or no longer do, are left out of their cards.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cards: dict[str, list[str]] = {}
        self._broken: list[list[str]] = []
        self._shown = self._total = self._changed = 0

    def add(self, answer: Answer) -> None:
        if answer.error:
            self._broken.append([html.escape(answer.image), html.escape(answer.error)])
            return
        self._total += 1
        changed = answer.label != answer.zero_shot
        self._changed += changed
        if self._shown >= _GALLERY:
            return
        self._shown += 1
        plain = f"<br><s>{html.escape(answer.zero_shot)}</s>" if changed else ""
        self._cards.setdefault(answer.label, []).append(
            f'<figure class="card{" changed" if changed else ""}">'
            f"{_thumbnail(answer)}<figcaption>{answer.probability:.0%} "
            f"<small>{html.escape(Path(answer.image).name)}</small>"
            f"{plain}</figcaption></figure>"
        )

    def close(self) -> None:
        from soba import _page as page

        groups = "".join(
            f"<h2>{html.escape(label)} <small>{len(cards)}</small></h2>"
            f"<div class='grid'>{''.join(cards)}</div>"
            for label, cards in sorted(self._cards.items())
        )
        hidden = self._total - self._shown
        rest = f" The first {self._shown} are shown." if hidden else ""
        body = (
            f"<h1>{self._total} {'image' if self._total == 1 else 'images'}</h1>"
            f"<p class='soft'>{self._changed} answered "
            f"otherwise than by zero-shot CLIP: blue, its answer struck out.{rest}</p>{groups}"
        )
        if self._broken:
            broken = page.table(["image", "why"], self._broken, words=frozenset({0, 1}))
            body += f"<h2>Could not be read <small>{len(self._broken)}</small></h2>{broken}"
        page.write_text(self._path, "soba classify", body)


def _thumbnail(answer: Answer) -> str:
    from soba._page import thumbnail  # needs Pillow
    from soba.encode.image_files import open_image

    try:
        return thumbnail(open_image(Path(answer.image)), alt=answer.label)
    except Exception:  # gone since it was scored, in whatever way; its answer stands
        return ""
