"""Results -> one page that opens anywhere: tables, pictures, and what they were measured with."""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from soba import _page as page
from soba._files import replacing
from soba._page import Picture
from soba.bench.paper import quoted
from soba.bench.protocol import plain
from soba.bench.record import Record
from soba.bench.tuning import TEST_LABELS
from soba.report import ablation_plots
from soba.report import charts as report_plots
from soba.report import formats as table_formats
from soba.report.method_looks import title_of
from soba.report.read import Results
from soba.report.tables import Table, tables
from soba.studies import ablate, efficiency

MOST_PANELS = 48  # of single data sets; beyond, a picture is the mean of a table's data sets
_MOST_PROBLEMS = 20

Step = Callable[[str], None]


def write_report(path: Path, results: Results, *, step: Step = lambda what: None) -> None:
    """The page, and `step` called before each part of the work."""
    step("tables")
    all_tables = tables(results.records)
    parts = [_lead(results, all_tables), _warnings(results.problems)]
    parts += [f"<h2>{html.escape(t.title)}</h2>{table_formats.as_html(t)}" for t in all_tables]
    sections = (
        ("radars", _radars),
        ("streams", _streams),
        ("calibration", _calibration),
        ("cost", _cost),
    )
    for what, section in sections:
        step(what)
        parts.append(section(all_tables))
    parts += map(_efficiency, results.costs)
    step("ablations")
    parts.append(_ablations(results.ablations))
    step("environment")
    parts.append(_settings(results.records))
    parts.append(_environment(results.records))
    page.write_page(path, "soba report", "\n".join(part for part in parts if part))


def write_tables(path: Path, results: Results, form: str) -> None:
    """All tables as one Markdown or LaTeX file."""
    write = {"markdown": table_formats.markdown, "latex": table_formats.latex}[form]
    content = table_formats.document(map(write, tables(results.records)), form)
    if form == "markdown" and results.problems:
        listed = "\n".join(f"- {problem}" for problem in results.problems)
        content = f"**Left out of these tables:**\n\n{listed}\n\n{content}"
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def _lead(results: Results, all_tables: list[Table]) -> str:
    records = results.records
    numbers = [
        (f"{len(records):,}", "streams"),
        (f"{len({r.method for r in records})}", "methods"),
        (f"{len({(t.benchmark, name) for t in all_tables for name in t.datasets})}", "data sets"),
        (f"{sum(r.samples or 0 for r in records):,}", "images adapted to"),
    ]
    cards = "".join(f'<div class="number"><b>{n}</b>{what}</div>' for n, what in numbers)
    on_test = sum(r.tuned_on == TEST_LABELS for r in records)
    warning = ""
    if on_test:
        warning = (
            f'<p class="bad"><b>{on_test:,} of these records were tuned on test labels. They are '
            "red, and take no part in best and second best nor in the pictures.</b></p>"
        )
    rule = (
        "The best of each column is <b>bold</b>, the second <span class='second'>underlined</span>."
        if all_tables
        else ""
    )
    return (
        "<h1>Test-time adaptation, measured</h1>"
        "<p class='soft'>Every number is measured by the records behind this page, unless it is "
        f"marked {table_formats.QUOTED}: then it is quoted from the SOBA paper. {rule}</p>"
        f"{warning}<div class='cards'>{cards if records else ''}</div>"
    )


def _warnings(problems: list[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{html.escape(p)}</li>" for p in problems[:_MOST_PROBLEMS])
    if len(problems) > _MOST_PROBLEMS:
        items += f"<li>and {len(problems) - _MOST_PROBLEMS} more</li>"
    return (
        "<div class='warning'><p><b class='bad'>Not everything in the results could be used</b></p>"
        f"<ul>{items}</ul></div>"
    )


def _radars(all_tables: list[Table]) -> str:
    drawable = [
        t for t in all_tables if t.benchmark in ("ood", "icons") and report_plots.can_be_radar(t)
    ]
    return _section(
        "Out of distribution, at a glance",
        "A method is a polygon, a data set an axis. Each axis has its own scale, written at its "
        "end: from the worst method to the best.",
        [Picture(partial(report_plots.radar, t), f"radar of {t.title}", t.title) for t in drawable],
    )


def _streams(all_tables: list[Table]) -> str:
    return _section(
        "Accuracy over the stream",
        "Each point is a twentieth of the stream, mean over the orders: methods that learn start "
        "as zero-shot CLIP and leave it behind, or not.",
        _over_stream(all_tables),
    )


def _calibration(all_tables: list[Table]) -> str:
    fair = [table for table in all_tables if table.fair]
    bars = [
        Picture(
            partial(report_plots.calibration, t.fair, _whole(t)),
            f"calibration error, {t.title}",
            t.title,
        )
        for t in fair
    ]
    curves = [
        Picture(
            partial(report_plots.over_coverage, t.fair, _whole(t)),
            f"over coverage, {t.title}",
            t.title,
        )
        for t in fair
        if any(record.accuracy_at_coverage for records in t.fair.values() for record in records)
    ]
    first = _section(
        "Calibration",
        "How far confidence is from accuracy (15 bins of equal width), mean over data sets and "
        "orders; whiskers: standard deviation over all of them.",
        bars,
    )
    second = _section(
        "Answering only when sure",
        "Accuracy on the share of the images that a method is surest of: a curve that falls from "
        "left to right knows what it does not know.",
        curves,
    )
    return first + second


def _over_stream(all_tables: list[Table]) -> list[Picture]:
    """A picture per stream; per table, where that would be too many."""
    streams = {
        (t.title, r.dataset) for t in all_tables for records in t.fair.values() for r in records
    }
    single = len(streams) <= MOST_PANELS
    images = []
    for table in all_tables:
        panels: dict[str, report_plots.Members] = {}
        for label, records in table.fair.items():
            for record in records:
                if record.accuracy_over_stream:
                    apart = single and record.dataset in table.datasets
                    name = record.dataset if apart else _whole(table)
                    panels.setdefault(name, {}).setdefault(label, []).append(record)
        for name in (name for name in (*table.datasets, _whole(table)) if name in panels):
            draw = partial(report_plots.over_stream, panels[name], name)
            alt = f"accuracy over the stream, {name}, {table.title}"
            images.append(Picture(draw, alt, table.title))
    return images


def _whole(table: Table) -> str:
    """What a picture of all records of a table shows."""
    return "all domains" if table.joined else "mean of the data sets"


def _cost(all_tables: list[Table]) -> str:
    parts, lines = [], 0
    for table in all_tables:
        plain_clip = [
            r for records in table.members.values() for r in records if r.method == "zero-shot"
        ]
        zero = _per_thousand(plain_clip, "seconds")
        rows = []
        for label, records in table.members.items():
            adapt = _per_thousand(records, "seconds")
            encode = _per_thousand(records, "encode_seconds")
            rows.append(
                [
                    html.escape(label),
                    _seconds(adapt),
                    f"{adapt / zero:.1f}&times;" if zero and adapt is not None else "",
                    _seconds(encode),
                    f"{100 * adapt / encode:.2f} %" if encode and adapt is not None else "",
                ]
            )
        headings = ["method", "adapting", "to zero-shot", "encoding", "adapting of encoding"]
        drawn = page.table(headings, rows, kinds=[""] * len(rows))
        parts.append(f"<h3>{html.escape(table.title)}</h3>{drawn}")
        lines += len(rows)
    if not parts:
        return ""
    count = "1 table" if len(parts) == 1 else f"{len(parts)} tables"
    return (
        "<h2>Cost</h2><p class='soft'>Seconds per 1,000 images, encoding and adapting apart, on "
        "the machine that made the records.</p>"
        f"<details{' open' if lines <= 40 else ''}><summary>{count}</summary>"
        f"{''.join(parts)}</details>"
    )


def _efficiency(measured: efficiency.Measured) -> str:
    """What `soba bench efficiency` measured, the paper's runtimes in the last columns."""
    mark = table_formats.QUOTED
    headings = [
        f"<i>{name} {mark}</i>" if name in efficiency.QUOTED_HEADINGS else name
        for name in efficiency.HEADINGS
    ]
    n_measured = len(headings) - len(efficiency.QUOTED_HEADINGS)
    rows = []
    for cost in measured.costs:
        name, *numbers = efficiency.shown(cost)
        cells = [html.escape(title_of(name)), *numbers]
        rows.append(cells[:n_measured] + [cell and f"<i>{cell}</i>" for cell in cells[n_measured:]])
    return (
        f"<h2>Efficiency, {html.escape(measured.title)}</h2>"
        "<p class='soft'>Encoding and adapting apart, on the machine that measured them. "
        f"{efficiency.RATIOS} {mark} {efficiency.QUOTED_FROM}</p>"
        f"{page.table(headings, rows, kinds=[''] * len(rows))}"
    )


def _per_thousand(records: list[Record], field: str) -> float | None:
    known = [
        getattr(r, field) / r.samples
        for r in records
        if getattr(r, field) is not None and r.samples
    ]
    return float(1000 * np.mean(known)) if known else None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s" if value < 10 else f"{value:.1f} s"


def _ablations(ablations: dict[str, list[ablate.Row]]) -> str:
    images = []
    for name, rows in ablations.items():
        for file, points in ablate.summarise(rows).items():
            draw = partial(_ablation, name, file, points)
            images.append(Picture(draw, f"ablation of {name} on {file}", f"Ablation: {name}"))
    drawn = _section(
        "Ablations",
        "One thing varies, all else is as the paper has it; whiskers: one standard deviation over "
        "the orders; dashed: zero-shot CLIP.",
        images,
    )
    return drawn + (_quoted_ablation() if "capacity" in ablations else "")


def _ablation(name: str, file: str, points: list[ablate.Point], width: float) -> Any:
    figure = ablation_plots.figure(name, file, points, width)
    if name == "capacity" and (dataset := report_plots.quoted_set(file)):
        report_plots.add_quoted(figure, _quoted_capacities()[dataset])
    return figure


def _quoted_capacities() -> dict[str, dict[str, float]]:
    """Data set -> capacity -> what the paper prints."""
    numbers: dict[str, dict[str, float]] = defaultdict(dict)
    for row in quoted(table="capacity"):
        numbers[row.dataset][row.setting.removeprefix("capacity=")] = row.value
    return numbers


def _quoted_ablation() -> str:
    printed = _quoted_capacities()
    capacities = list(next(iter(printed.values())))
    rows = [
        [html.escape(name), *(f"<i>{numbers[capacity]:.2f}</i>" for capacity in capacities)]
        for name, numbers in printed.items()
    ]
    mark = table_formats.QUOTED
    headings = ["data set", *(f"{capacity} {mark}" for capacity in capacities)]
    return (
        "<h3>The paper's own capacity ablation (quoted)</h3><p class='soft'>SOBA with ViT-B/16, "
        f"samples kept per class across, top-1 %. {mark} quoted from the SOBA paper, not measured "
        f"here.</p>{page.table(headings, rows, kinds=['quoted'] * len(rows))}"
    )


def _settings(records: list[Record]) -> str:
    """What each method ran with."""
    by_method: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_method[record.method].append(record)
    if not by_method:
        return ""
    rows = []
    for method, method_records in by_method.items():
        values: dict[str, set[str]] = defaultdict(set)
        for record in method_records:
            for key, value in record.hyper_parameters.items():
                values[key].add(plain(value))
        given = ", ".join(
            f"{key}={next(iter(seen))}" if len(seen) == 1 else f"{key}: {len(seen)} values"
            for key, seen in values.items()
        )
        tuned = sorted({plain(record.tuned_on) for record in method_records})
        sources = ", ".join(
            f'<span class="bad">{html.escape(t)}</span>' if t == TEST_LABELS else html.escape(t)
            for t in tuned
        )
        origin = ", ".join(sorted({plain(record.provenance) for record in method_records} - {""}))
        name = html.escape(title_of(method))
        rows.append([name, html.escape(origin), sources, html.escape(given)])
    headings = ["method", "provenance", "hyper-parameters from", "hyper-parameters"]
    table = page.table(headings, rows, kinds=[""] * len(rows), words=frozenset({1, 2, 3}))
    return f"<h2>Settings</h2>{table}"


def _environment(records: list[Record]) -> str:
    """Versions, encoders, prompts and views, as the records have them."""
    if not records:
        return ""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        for name, version in record.versions.items():
            counts[str(name)][plain(version)] += 1
        for field in ("encoder", "model", "view_policy", "prompts"):
            if value := getattr(record, field):
                counts[field.replace("_", " ")][plain(value)] += 1
    rows = []
    for name, counted in counts.items():
        listed = "<br>".join(
            f"{html.escape(value if len(value) <= 200 else value[:197] + '...')}"
            + (f" <small>{count:,} records</small>" if len(counted) > 1 else "")
            for value, count in counted.most_common(12)
        )
        more = len(counted) - 12
        rows.append([html.escape(name), listed + (f"<br>and {more} more" if more > 0 else "")])
    table = page.table(["", "of the records"], rows, kinds=[""] * len(rows), words=frozenset({1}))
    return f"<h2>Environment</h2>{table}"


def _section(title: str, text: str, pictures: list[Picture]) -> str:
    if not pictures:
        return ""
    return f"<h2>{title}</h2><p class='soft'>{text}</p>{page.panels(pictures)}"
