"""What a saved state knows, as one page: numbers, classes with their pictures, changed answers."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from soba import _page as page
from soba.encode.image_files import open_image
from soba.report.method_looks import title_of
from soba.studies.inspection import Inspection
from soba.studies.prompts import PromptHints, RankedTemplate

_CHANGED = 60  # pictures of changed answers
_TEMPLATES = 10


def write_inspection(
    path: Path,
    inspection: Inspection,
    places: Mapping[int, Path],
    *,
    title: str,
    hints: PromptHints | None = None,
    templates: Sequence[RankedTemplate] = (),
) -> None:
    """Write the page; `places` are the files that samples were found in, by their ids."""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p class='soft'>{html.escape(_about(inspection, places))}</p>",
        _numbers(inspection),
        "<h2>Classes</h2>",
        _classes(inspection),
        "<h2>Answered otherwise than by zero-shot</h2>",
        _changes(inspection),
    ]
    if places:
        parts += [_changed_pictures(inspection, places), _class_pictures(inspection, places)]
    if hints is not None:
        parts += ["<h2>Prompt check</h2>", _hints(hints, templates, inspection.names)]
    page.write_page(path, title, "".join(parts))


def _about(inspection: Inspection, places: Mapping[int, Path]) -> str:
    kept = len(inspection.samples)
    about = f"{title_of(inspection.method)}, {inspection.n_seen} samples seen, {kept} kept"
    if kept:
        chosen = "those that CLIP is surest of in each class" if inspection.queues else "by chance"
        about += f", {chosen}"
    about += "."
    return f"{about} {len(places)} of them were found as files." if places else about


def _numbers(inspection: Inspection) -> str:
    samples = inspection.samples
    changed, drawn = inspection.changed_of(samples.drawn)
    numbers = [
        ("classes", str(len(inspection.names))),
        ("samples seen", str(inspection.n_seen)),
        ("kept", str(len(samples))),
    ]
    if drawn:
        numbers.append(
            ("of the samples drawn by chance answered otherwise", f"{changed / drawn:.0%}")
        )
    if inspection.expected is not None:
        plain, adapted = inspection.expected
        numbers.append(
            (
                "expected right; a guess, too high where CLIP is shifted",
                f"{plain:.0%} → {adapted:.0%}",
            )
        )
    cards = "".join(f"<div class='number'><b>{value}</b>{name}</div>" for name, value in numbers)
    return f"<div class='cards'>{cards}</div>"


def _classes(inspection: Inspection) -> str:
    headings = ["class", *map(html.escape, inspection.queues)]
    headings += ["mean entropy"] if inspection.queues else ["mass", "zero-shot", "adapted"]
    rows = []
    for each in inspection.classes:
        cells = [html.escape(each.name), *map(str, each.queued)]
        if inspection.queues:
            cells.append("" if each.mean_entropy is None else f"{each.mean_entropy:.3f}")
        else:
            mass = "" if each.mass is None else f"{each.mass:.1f}"
            cells += [mass, str(each.zero_shot), str(each.adapted)]
        rows.append(cells)
    return page.table(headings, rows, kinds=[""] * len(rows))


def _changes(inspection: Inspection) -> str:
    if not inspection.changes:
        return "<p>None of the samples that are kept.</p>"
    names = [html.escape(name) for name in inspection.names]
    rows = [
        [f"{names[change.before]} → {names[change.after]}", str(change.count)]
        for change in inspection.changes
    ]
    return page.table(["zero-shot → now", "samples kept"], rows)


def _changed_pictures(inspection: Inspection, places: Mapping[int, Path]) -> str:
    rows = np.flatnonzero(inspection.samples.changed).tolist()
    pictured = [row for row in rows if int(inspection.samples.ids[row]) in places]
    if not pictured:
        return ""
    cards = "".join(_card(inspection, row, places) for row in pictured[:_CHANGED])
    rest = f" The first {_CHANGED} of {len(pictured)}." if len(pictured) > _CHANGED else ""
    note = f"<p class='soft'>Zero-shot's answer is struck out.{rest}</p>"
    return f"{note}<div class='grid'>{cards}</div>"


def _class_pictures(inspection: Inspection, places: Mapping[int, Path]) -> str:
    ids = inspection.samples.ids
    parts = ["<h2>What the classes are learned from</h2>"]
    for each in inspection.classes:
        pictured = [row for row in each.best if int(ids[row]) in places]
        if pictured:
            cards = "".join(_card(inspection, row, places) for row in pictured)
            parts.append(f"<h3>{html.escape(each.name)}</h3><div class='grid'>{cards}</div>")
    return "".join(parts)


def _card(inspection: Inspection, row: int, places: Mapping[int, Path]) -> str:
    samples, names = inspection.samples, inspection.names
    path, changed = places[int(samples.ids[row])], bool(samples.changed[row])
    now = html.escape(names[samples.adapted[row]])
    before = f"<br><s>{html.escape(names[samples.zero_shot[row]])}</s>" if changed else ""
    return (
        f'<figure class="card{" changed" if changed else ""}">{_thumbnail(path, now)}'
        f"<figcaption>{now} {samples.confidence[row]:.0%} "
        f"<small>{html.escape(path.name)}</small>{before}</figcaption></figure>"
    )


def _thumbnail(path: Path, alt: str) -> str:
    try:
        return page.thumbnail(open_image(path), alt=alt)
    except Exception:  # gone since it was found, or no picture that can be drawn; its card stays
        return ""


def _hints(hints: PromptHints, templates: Sequence[RankedTemplate], names: Sequence[str]) -> str:
    name = [html.escape(each) for each in names]
    parts = [
        f"<p class='soft'>Hints from {hints.images} images, not proof: the adapted answers stand "
        "in for labels.</p>"
    ]
    contradicted = [
        [
            name[hint.label],
            str(hint.images),
            f"{hint.called_so:.0%}",
            name[hint.rival],
            "yes" if hint.nearer_rival else "",
        ]
        for hint in hints.contradicted
    ]
    headings = ["name", "images", "zero-shot agrees", "rival", "nearer to the rival's images"]
    parts += ["<h3>Names that the images contradict</h3>", _table_or_none(headings, contradicted)]
    pairs = [[name[p.first], name[p.second], f"{p.cosine:.2f}"] for p in hints.alike]
    parts += ["<h3>Names that are alike</h3>", _table_or_none(["one", "other", "cosine"], pairs)]
    unused = ", ".join(name[label] for label in hints.unused) or "none"
    parts.append(f"<h3>Classes that no image is answered with</h3><p>{unused}</p>")
    if templates:
        ranked = [[html.escape(t.template), f"{t.agreement:.1%}"] for t in templates]
        best = page.table(["template", "agreement"], ranked[:_TEMPLATES])
        parts += [f"<h3>Templates</h3>{best}"]
    return "".join(parts)


def _table_or_none(headings: list[str], rows: list[list[str]]) -> str:
    return page.table(headings, rows) if rows else "<p>None.</p>"
