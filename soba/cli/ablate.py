"""`soba ablate`: the paper's ablations on feature files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import soba
from soba._files import alone
from soba.cli._common import err, out, progress_bar, shown
from soba.report.ablation_plots import write_pictures
from soba.report.plots import check_pictures
from soba.studies.ablate import (
    ABLATIONS,
    MOST_REFRESHES,
    Point,
    ablate,
    add_rows,
    check_same_file,
    earlier_rows,
    file_name,
    settings_for,
    summarise,
)


def ablate_(
    name: Annotated[str, typer.Argument(metavar="|".join(ABLATIONS), help="What varies.")],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FEATURES...", help="Labelled features: .safetensors, .npz or .pt."),
    ],
    orders: Annotated[int, typer.Option(min=1, help="Shuffled streams, seeds 0 to ORDERS-1.")] = 5,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where the results go.")
    ] = Path("ablations"),
) -> None:
    """Vary one thing of SOBA, all else as the paper has it, on the same shuffled streams.

    `capacity`: 2 to 32 samples per class, and all. `alpha`: 0 to 100. `classifier`: L1, L2 and
    cosine to the class means in CLIP's space; L1, L2 and linear to the rotated ones. `refresh`:
    at every tenth, ever more rarely, every 100, 10 and 1 samples. `reading`: four ways to read
    the paper's formula, and its baseline. Writes NAME.csv (a line per file, setting and order),
    NAME.png and NAME.svg; runs into the same folder add to them:

    `soba ablate capacity data/whurs19/*.npz -o results/ablations`

    The report of `soba report results` then has them, too.
    """
    settings_for(name, 1)  # an unknown name is refused before anything is read
    check_pictures()
    sets = [_labelled(path) for path in files]
    names = [file_name(features) for features in sets]
    if len(set(names)) < len(names):
        raise ValueError("two FEATURES files have the same name: results could not be told apart")
    table = output / f"{name}.csv"
    rows = earlier_rows(table, name)
    for features in sets:
        check_same_file(table, rows, features)
    output.mkdir(parents=True, exist_ok=True)
    total = sum(len(settings_for(name, len(features))[0]) for features in sets) * orders
    with alone(output), progress_bar() as progress:
        task = progress.add_task(name, total=total)
        for file, features in zip(names, sets, strict=True):
            new_rows = ablate(
                name,
                features,
                orders=orders,
                step=lambda what, file=file: progress.update(  # type: ignore[misc]
                    task, advance=1, description=shown(f"{file}: {what}")
                ),
            )
            rows = add_rows(table, new_rows)  # now, so that a killed run keeps what it had
        points = summarise(rows)
        pictures = write_pictures(output, name, points)
    for path, features in zip(files, sets, strict=True):
        for setting in settings_for(name, len(features))[1]:
            err.print(
                f"[yellow]{shown(path.name)}: left out {setting.label}, more than {MOST_REFRESHES} "
                "refreshes[/]",
                soft_wrap=True,
                highlight=False,
            )
    out.print(_table(name, {file: points[file] for file in names}))
    written = ", ".join(shown(path) for path in (table, *pictures))
    earlier = f", with earlier ones {len(rows)}," if len(rows) > total else ""
    out.print(f"{total} streams{earlier} in {written}", soft_wrap=True, highlight=False)


def _labelled(path: Path) -> soba.FeatureSet:
    features = soba.FeatureSet.load(path)
    if features.labels is None:
        raise ValueError(f"{path}: has no labels, accuracy cannot be measured")
    return features


def _table(name: str, points: dict[str, list[Point]]) -> Table:
    """Settings down, files across; zero-shot apart, the best of each file bold."""
    counts = sorted({point.orders for file_points in points.values() for point in file_points})
    orders = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    over = "1 order" if orders == "1" else f"{orders} orders"
    title = f"{ABLATIONS[name].varies}: top-1 %, mean over {over} (std)"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column(name, no_wrap=True)
    for file in points:
        table.add_column(shown(file), justify="right", no_wrap=True)
    by_file = {
        file: {(p.line, p.setting): p for p in file_points} for file, file_points in points.items()
    }
    keys = list(dict.fromkeys(key for file_points in by_file.values() for key in file_points))
    methods = {(s.line, s.label): s.method for s in ABLATIONS[name].settings}
    for key in sorted(keys, key=lambda key: key[0] != "zero-shot"):
        cells = []
        for file_points in by_file.values():
            point = file_points.get(key)
            if point is None:
                cells.append("")
                continue
            best = point.mean == max(p.mean for p in file_points.values())
            score = f"[bold]{point.mean:.2f}[/]" if best else f"{point.mean:.2f}"
            cells.append(score if key[0] == "zero-shot" else f"{score} [dim]({point.std:.2f})[/]")
        table.add_row(methods.get(key, key[0]), "" if key[0] == "zero-shot" else key[1], *cells)
    return table
