"""The paper's ablations on feature files: one thing varies, all else stays as the paper has it.

Fig. 3 of the paper varies the classifier, the queue's capacity and alpha on ImageNet; it prints no
numbers for the first and the last, and no spread for any. Here each setting runs on the same
seeded orders, and two questions are added that the paper leaves open: how its formula is read, and
when the statistics refresh.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soba._files import replacing
from soba.adapt.ncm import NCM
from soba.adapt.soba import READINGS, SOBA
from soba.bench.evaluate import evaluate
from soba.bench.metrics import mean_and_std
from soba.feature_set import FeatureSet

MOST_REFRESHES = 2000  # of one stream; a setting that needs more is left out, and named
_SAME_ACCURACY = 0.1  # points: what rounding on another machine may change


@dataclass(frozen=True)
class Setting:
    """A point of an ablation: a method, and what is changed of it."""

    line: str  # points of one line are joined in the picture
    label: str
    method: str
    changes: dict[str, Any] = field(default_factory=dict)

    def refreshes(self, total: int) -> int:
        every = self.changes.get("refresh")
        return total // every if isinstance(every, int) else 10


@dataclass(frozen=True)
class Row:
    """One stream of an ablation, as the CSV has it."""

    ablation: str
    file: str
    line: str
    setting: str
    seed: int
    accuracy: float
    calibration_error: float
    seconds: float


@dataclass(frozen=True)
class Ablation:
    """What varies, and whether its settings have an order: then their points are joined."""

    varies: str
    settings: tuple[Setting, ...]
    paper: str  # label of the setting that the paper chose
    ordered: bool = False


_SOBA, _NCM = SOBA.card.name, NCM.card.name
ZERO_SHOT = Setting("zero-shot", "zero-shot", "zero-shot")


def _capacities() -> list[Setting]:
    known: dict[str, int | None] = {str(k): k for k in (2, 4, 6, 8, 16, 32)} | {"full": None}
    return [
        Setting(method, label, method, {"capacity": capacity})
        for method in (_SOBA, _NCM)
        for label, capacity in known.items()
    ]


def _alphas() -> list[Setting]:
    alphas = (0.0, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 100.0)
    return [
        Setting(method, f"{alpha:g}", method, {"alpha": alpha})
        for method in (_SOBA, _NCM)
        for alpha in alphas
    ]


def _classifiers() -> list[Setting]:
    spaces = [("CLIP's space", _NCM, "metric", m) for m in ("l1", "l2", "cosine")]
    spaces += [("to mu_hat", _SOBA, "classifier", c) for c in ("l1", "l2", "linear")]
    titles = {"l1": "L1", "l2": "L2", "cosine": "cosine", "linear": "linear"}
    return [
        Setting("classifier", f"{titles[value]}, {where}", method, {key: value})
        for where, method, key, value in spaces
    ]


def _refreshes() -> list[Setting]:
    known: dict[str, str | int] = {"tenths": "tenths", "growth": "growth"}
    known |= {f"every {m}": m for m in (100, 10)} | {"every sample": 1}
    return [
        Setting("refresh", label, _SOBA, {"refresh": refresh}) for label, refresh in known.items()
    ]


def _readings() -> list[Setting]:
    readings = [Setting("reading", name, _SOBA, {"reading": name}) for name in READINGS]
    return [*readings, Setting("reading", _NCM, _NCM)]  # the paper's baseline, to compare with


ABLATIONS = {
    "capacity": Ablation("samples kept per class", (*_capacities(), ZERO_SHOT), "16", True),
    "alpha": Ablation("alpha", (*_alphas(), ZERO_SHOT), "15", True),
    "classifier": Ablation("classifier", (ZERO_SHOT, *_classifiers()), "linear, to mu_hat"),
    "refresh": Ablation("refresh of the statistics", (ZERO_SHOT, *_refreshes()), "tenths"),
    "reading": Ablation("reading of the formula", (ZERO_SHOT, *_readings()), "literal"),
}


def settings_for(name: str, total: int) -> tuple[list[Setting], list[Setting]]:
    """The settings of an ablation on `total` samples: those to run, and those left out."""
    if name not in ABLATIONS:
        raise ValueError(f"no ablation {name!r}; there are: {', '.join(ABLATIONS)}")
    kept: list[Setting] = []
    left_out: list[Setting] = []
    for setting in ABLATIONS[name].settings:
        (kept if setting.refreshes(total) <= MOST_REFRESHES else left_out).append(setting)
    return kept, left_out


def ablate(
    name: str,
    features: FeatureSet,
    *,
    orders: int = 5,
    step: Callable[[str], None] = lambda what: None,
) -> list[Row]:
    """One row per (setting, seed), every setting on the same orders.

    Examples
    --------
    >>> import soba
    >>> from soba.testing import example_stream
    >>> images, labels, text = example_stream(n=120, classes=4, width=8)
    >>> rows = ablate("reading", soba.FeatureSet(images, text, labels=labels), orders=2)
    >>> len(rows), rows[0].setting, rows[-1].setting
    (12, 'zero-shot', 'ncm')
    """
    rows = []
    for setting in settings_for(name, len(features))[0]:
        records = evaluate(
            features,
            [setting.method],
            orders=orders,
            overrides=setting.changes,
            step=lambda method, seed, label=setting.label: step(f"{method}, {label}, order {seed}"),  # type: ignore[misc]
        )
        rows += [
            Row(
                name,
                file_name(features),
                setting.line,
                setting.label,
                record.seed,
                record.accuracy,
                record.calibration_error,
                record.seconds,
            )
            for record in records
        ]
    return rows


def file_name(features: FeatureSet) -> str:
    """What the rows call a feature set: its file without ending, as any text file can hold it."""
    name = features.source.stem if features.source else "features"
    return name.encode("utf-8", "replace").decode()


@dataclass(frozen=True)
class Point:
    """A setting's result on a file, over the orders."""

    line: str
    setting: str
    mean: float
    std: float
    orders: int


def summarise(rows: Iterable[Row]) -> dict[str, list[Point]]:
    """File -> its points, in the order they ran."""
    scores_by_setting: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        scores_by_setting.setdefault((row.file, row.line, row.setting), []).append(row.accuracy)
    points: dict[str, list[Point]] = {}
    for (file, line, setting), scores in scores_by_setting.items():
        point = Point(line, setting, *mean_and_std(scores), len(scores))
        points.setdefault(file, []).append(point)
    return points


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """One line per stream."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(Row.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(vars(row) for row in rows)


def read_csv(path: Path) -> list[Row]:
    """What `write_csv` wrote; any damage raises a ValueError that names the file."""
    columns = list(Row.__dataclass_fields__)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != columns:
                raise ValueError(f"its columns are not {', '.join(columns)}")
            rows = [_row(line) for line in reader]
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise ValueError(f"{path}: not an ablation's CSV ({error})") from error
    if not rows:
        raise ValueError(f"{path}: holds no results")
    return rows


def add_rows(path: Path, rows: Sequence[Row]) -> list[Row]:
    """Add to a CSV, or begin it, and return all it then holds.

    Rows of the same file, setting and seed as earlier ones take their place.
    """
    earlier = earlier_rows(path, rows[0].ablation)
    merged = {(row.file, row.line, row.setting, row.seed): row for row in (*earlier, *rows)}
    files = list(dict.fromkeys(row.file for row in merged.values()))
    settings = [(s.line, s.label) for s in ABLATIONS[rows[0].ablation].settings]

    def place(row: Row) -> tuple[int, int, int]:
        key = (row.line, row.setting)
        known = settings.index(key) if key in settings else len(settings)
        return files.index(row.file), known, row.seed

    in_order = sorted(merged.values(), key=place)
    write_csv(path, in_order)
    return in_order


def earlier_rows(path: Path, name: str) -> list[Row]:
    """What earlier runs of an ablation left, if any did."""
    rows = read_csv(path) if path.exists() else []
    others = {row.ablation for row in rows} - {name}
    if others:
        raise ValueError(f"{path}: holds results of {', '.join(sorted(others))}, not of {name}")
    return rows


def check_same_file(path: Path, earlier: Iterable[Row], features: FeatureSet) -> None:
    """Refuse a feature set whose rows would take the place of those of another one.

    Zero-shot is the same in every order, so it tells them apart, for the price of a product.
    """
    name = file_name(features)
    before = [r.accuracy for r in earlier if (r.file, r.line) == (name, ZERO_SHOT.line)]
    if not before:
        return
    [now] = evaluate(features, [ZERO_SHOT.method], orders=1)
    if abs(now.accuracy - before[0]) > _SAME_ACCURACY:
        raise ValueError(
            f"{path}: has results of another file called {name} (zero-shot {before[0]:.2f}%, not "
            f"{now.accuracy:.2f}%): rename one of them or give another --output"
        )


def _row(line: dict[str, Any]) -> Row:
    if line["ablation"] not in ABLATIONS:
        raise ValueError(f"there is no ablation {line['ablation']!r}")
    numbers = {key: float(line[key]) for key in ("accuracy", "calibration_error", "seconds")}
    return Row(**{**line, **numbers, "seed": int(line["seed"])})
