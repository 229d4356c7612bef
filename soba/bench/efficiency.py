"""What adapting costs beside encoding: the paper's runtime table, as ratios, on this machine.

The file of a measurement holds seconds only: ratios and the paper's numbers are added when it is
read.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from soba.bench.evaluate import evaluate
from soba.bench.paper import quoted
from soba.bench.record_files import write_record
from soba.encode.encoder import Encoder
from soba.encode.store import FeatureSet
from soba.registry import adapter_class

HEADINGS = (
    "method",
    "encode s",
    "adapt s",
    "adapt ratio",
    "adapt / encode",
    "total ratio",
    "quoted min",
    "quoted ratio",
)
QUOTED_HEADINGS = HEADINGS[-2:]
RATIOS = "Ratios are to zero-shot; the total is encoding and adapting."
QUOTED_FROM = "quoted from the SOBA paper, not measured here: ImageNet with RN50 on its machine."
_CONTROL = "zero-shot"


@dataclass(frozen=True)
class Cost:
    """One method on one feature set.

    Attributes
    ----------
    encode
        Seconds for all the views it takes; None where the encoder was not timed.
    adapt
        Seconds of one stream, the median over repeats.
    adapt_ratio
        To zero-shot's own matrix product.
    total_ratio
        Encoding and adapting, to those of zero-shot.
    quoted_seconds, quoted_ratio
        What the paper prints for ImageNet with RN50 on its machine: encoding and adapting.
    """

    method: str
    encode: float | None
    adapt: float
    adapt_ratio: float
    total_ratio: float | None
    quoted_seconds: float | None
    quoted_ratio: float | None


@dataclass(frozen=True)
class Measured:
    """The costs of several methods on one feature set."""

    features: str  # what the feature set is called
    images: int
    classes: int
    costs: tuple[Cost, ...]

    @property
    def title(self) -> str:
        return f"{self.features}: {self.images:,} images, {self.classes:,} classes"


def encode_rate(encoder: Encoder, images: int = 128, batch: int = 64, seed: int = 0) -> float:
    """Seconds per image on this machine: preprocessing and the image tower, no decoding."""
    rng = np.random.default_rng(seed)
    picture = Image.fromarray(rng.integers(0, 256, (300, 400, 3), np.uint8))
    encoder.encode_pixels(encoder.preprocess(picture)[None])  # warm up
    start = time.perf_counter()
    for first in range(0, images, batch):
        count = min(batch, images - first)
        encoder.encode_pixels(np.stack([encoder.preprocess(picture) for _ in range(count)]))
    return (time.perf_counter() - start) / images


def costs(
    features: FeatureSet,
    methods: Sequence[str],
    *,
    seconds_per_image: float | None = None,
    repeats: int = 3,
    step: Callable[[str], None] = lambda method: None,
) -> list[Cost]:
    """What each method costs; zero-shot, which the ratios are to, comes first.

    Methods that can do with one view get one, and pay for encoding one; the others get all views
    of the feature set and pay for all.
    """
    chosen = [_CONTROL, *(name for name in methods if name != _CONTROL)]
    single = features
    if features.views > 1:
        single = dataclasses.replace(features, image_features=features.image_features[:, 0])
    measured = {}
    for name in chosen:
        many = adapter_class(name).least_views > 1
        given = features if many else single
        runs = [evaluate(given, [name], orders=[seed])[0]["seconds"] for seed in range(repeats)]
        encode = None
        if seconds_per_image is not None:
            encode = seconds_per_image * len(features) * given.views
        measured[name] = (encode, float(np.median(runs)))
        step(name)
    return _priced(measured)


def _priced(measured: dict[str, tuple[float | None, float]]) -> list[Cost]:
    """Method -> (encode, adapt) seconds, with their ratios and the paper's numbers."""
    base_encode, base_adapt = measured[_CONTROL]
    printed = {row.method: row.value for row in quoted(table="runtime") if row.unit == "s"}
    found = []
    for name, (encode, adapt) in measured.items():
        total = None
        if encode is not None and base_encode is not None:
            total = (encode + adapt) / (base_encode + base_adapt)
        seconds = printed.get(name)
        ratio = None if seconds is None else seconds / printed[_CONTROL]
        found.append(Cost(name, encode, adapt, adapt / base_adapt, total, seconds, ratio))
    return found


def shown(cost: Cost) -> list[str]:
    """A cost as the cells below :data:`HEADINGS`."""
    share = None if not cost.encode else cost.adapt / cost.encode
    minutes = None if cost.quoted_seconds is None else cost.quoted_seconds / 60
    numbers = (
        (cost.encode, "{:.2f}"),
        (cost.adapt, "{:.4f}"),
        (cost.adapt_ratio, "{:.2f}"),
        (share, "{:.2%}"),
        (cost.total_ratio, "{:.3f}"),
        (minutes, "{:.1f}"),
        (cost.quoted_ratio, "{:.2f}"),
    )
    return [cost.method, *("" if value is None else form.format(value) for value, form in numbers)]


def write_costs(path: Path, measured: Measured) -> None:
    """For `soba report`."""
    content = {
        "features": measured.features,
        "images": measured.images,
        "classes": measured.classes,
        "costs": [
            {"method": cost.method, "encode_seconds": cost.encode, "adapt_seconds": cost.adapt}
            for cost in measured.costs
        ],
    }
    write_record(path, content)


def costs_of(content: Any) -> Measured:
    """What :func:`write_costs` wrote, parsed; a ValueError says what is wrong with it."""
    try:
        seconds = {
            str(row["method"]): (row["encode_seconds"], row["adapt_seconds"])
            for row in content["costs"]
        }
        name, images, classes = (content[key] for key in ("features", "images", "classes"))
    except (KeyError, TypeError) as error:
        raise ValueError("not a file of `soba bench efficiency`") from error
    for method, (encode, adapt) in seconds.items():
        if not _is_time(adapt) or not (encode is None or _is_time(encode)):
            raise ValueError(f"not a cost: {method} takes {encode!r} and {adapt!r} seconds")
    if _CONTROL not in seconds:
        raise ValueError(f"not a file of `soba bench efficiency`: no {_CONTROL} to compare with")
    return Measured(str(name), int(images), int(classes), tuple(_priced(seconds)))


def _is_time(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf
