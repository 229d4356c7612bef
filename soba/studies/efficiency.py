"""What adapting costs beside encoding: the paper's runtime table, as ratios, on this machine.

Slow methods are timed on fewer images than fast ones: what is compared are seconds per image. The
file of a measurement holds seconds only: ratios and the paper's numbers are added when it is read.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from soba.bench.evaluate import evaluate, method_settings, transduces
from soba.bench.method_factory import MethodFactory
from soba.bench.paper import quoted
from soba.bench.record import write_object
from soba.encode.encoder import Encoder
from soba.feature_set import FeatureSet
from soba.registry import card

HEADINGS = (
    "method",
    "images",
    "encode ms",
    "adapt ms",
    "adapt ratio",
    "adapt / encode",
    "total ratio",
    "quoted min",
    "quoted ratio",
)
QUOTED_HEADINGS = HEADINGS[-2:]
RATIOS = "Milliseconds are per image. Ratios are to zero-shot; the total is encoding and adapting."
QUOTED_FROM = "quoted from the SOBA paper, not measured here: ImageNet with RN50 on its machine."
MOST_TUNED = 16  # images for a method that tunes prompts, which may take seconds for each
MOST_WITH_VIEWS = 64  # for the others that need many views of an image
MOST_IMAGES = 50_000  # ImageNet's, as in the paper
_CONTROL = "zero-shot"
_MOST_SECONDS = 1e12  # far beyond any measurement: a number above it is damage


@dataclass(frozen=True)
class Cost:
    """One method on one feature set.

    Attributes
    ----------
    images
        How many it was timed on.
    encode
        Seconds for all the views it takes of them; None where the encoder was not timed.
    adapt
        Seconds of one stream of them, the median over repeats.
    adapt_ratio
        Per image, to zero-shot's own matrix product.
    total_ratio
        Encoding and adapting, per image, to those of zero-shot.
    quoted_seconds, quoted_ratio
        What the paper prints for ImageNet with RN50 on its machine: encoding and adapting.
    """

    method: str
    images: int
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


def papers_methods() -> list[str]:
    """Those of the paper's runtime table.

    Examples
    --------
    >>> papers_methods()
    ['zero-shot', 'tpt', 'difftpt', 'tda', 'soba']
    """
    return list(dict.fromkeys(row.method for row in quoted(table="runtime")))


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


def most_images(method: str) -> int:
    """How many images a method is timed on at most."""
    if card(method).tunes_prompts:
        return MOST_TUNED
    return MOST_WITH_VIEWS if card(method).min_views > 1 else MOST_IMAGES


def prepared(
    features: FeatureSet,
    methods: Iterable[str],
    *,
    views: FeatureSet | None = None,
    tunable: Encoder | None = None,
) -> tuple[dict[str, MethodFactory], dict[str, str]]:
    """Method -> what it is timed with, and method -> why it cannot run; nothing is timed yet.

    Zero-shot, which the ratios are to, comes first. Methods that can do with one view get one. The
    others get `views`, by default all the views of `features`; `tunable` is the encoder that made
    them, for methods that tune prompts. Every method scores one image, to find out what it lacks.
    """
    single = features
    if features.views > 1:
        single = dataclasses.replace(
            features, image_features=features.image_features[:, 0], view_policy=None
        )
    factories, problems = {}, {}
    for name in dict.fromkeys((_CONTROL, *methods)):
        try:
            many = card(name).min_views > 1
            given = _some((views or features) if many else single, most_images(name))
            factory = MethodFactory(given, tunable)
            factory.check(name)
            adapter = factory.make(name, method_settings(name, len(given)))
            score: Any = adapter.logits
            if transduces(name, asked=False):
                score = getattr(adapter, "transduce")  # noqa: B009, the family has it
            score(factory.images(name)[:1])
        except (ValueError, ImportError) as error:
            problems[name] = str(error)
        else:
            factories[name] = factory
    return factories, problems


def costs(
    given: Mapping[str, MethodFactory],
    *,
    seconds_per_image: float | None = None,
    repeats: int = 3,
    step: Callable[[str, int], None] = lambda method, streams: None,
) -> list[Cost]:
    """What each method that was `prepared` costs.

    A method pays for encoding all the views it gets. `step` is called when a method begins, with
    0, and after each of its streams, with 1.
    """
    measured = {}
    for name, factory in given.items():
        step(name, 0)
        runs = []
        for seed in range(repeats):
            [record] = evaluate(factory.features, [name], orders=[seed], factory=factory)
            runs.append(record.seconds)
            step(name, 1)
        images, encode = len(factory.features), None
        if seconds_per_image is not None:
            encode = seconds_per_image * images * record.views
        measured[name] = (images, encode, float(np.median(runs)))
    return _priced(measured)


def _some(features: FeatureSet, most: int) -> FeatureSet:
    """Some of the images, of all classes alike."""
    if len(features) <= most:
        return features
    rows = np.sort(np.random.default_rng(0).permutation(len(features))[:most])
    labels = None if features.labels is None else features.labels[rows]
    return dataclasses.replace(
        features, image_features=features.image_features[rows], labels=labels, keys=None
    )


def _priced(measured: dict[str, tuple[int, float | None, float]]) -> list[Cost]:
    """Method -> images and their (encode, adapt) seconds, with ratios and the paper's numbers."""
    base_images, base_encode, base_adapt = measured[_CONTROL]
    printed = {row.method: row.value for row in quoted(table="runtime") if row.unit == "s"}
    priced = []
    for name, (images, encode, adapt) in measured.items():
        share, total = base_images / images, None
        if encode is not None and base_encode is not None:
            total = share * (encode + adapt) / (base_encode + base_adapt)
        seconds = printed.get(name)
        ratio = None if seconds is None else seconds / printed[_CONTROL]
        adapt_ratio = share * adapt / base_adapt
        priced.append(Cost(name, images, encode, adapt, adapt_ratio, total, seconds, ratio))
    return priced


def shown(cost: Cost) -> list[str]:
    """A cost as the cells below `HEADINGS`."""
    share = None if not cost.encode else cost.adapt / cost.encode
    encode = None if cost.encode is None else 1e3 * cost.encode / cost.images
    minutes = None if cost.quoted_seconds is None else cost.quoted_seconds / 60
    numbers = (
        (cost.images, "{:,}"),
        (encode, "{:.2f}"),
        (1e3 * cost.adapt / cost.images, _form(1e3 * cost.adapt / cost.images)),
        (cost.adapt_ratio, _form(cost.adapt_ratio)),
        (share, "{:.2%}"),
        (cost.total_ratio, "{:,.3f}"),
        (minutes, "{:.1f}"),
        (cost.quoted_ratio, "{:.2f}"),
    )
    return [cost.method, *("" if value is None else form.format(value) for value, form in numbers)]


def _form(value: float | None) -> str:
    """Fewer decimals the larger a number is, so that no column grows wide.

    >>> [_form(value).format(value) for value in (0.0007, 14.69, 108.618, 145412.3)]
    ['0.0007', '14.690', '108.62', '145,412']
    """
    decimals = 0 if value is None else max(0, 5 - len(f"{value:.0f}"))
    return f"{{:,.{decimals}f}}"


def write_costs(path: Path, measured: Measured) -> None:
    """For `soba report`."""
    content = {
        "features": measured.features,
        "images": measured.images,
        "classes": measured.classes,
        "costs": [
            {
                "method": cost.method,
                "images": cost.images,
                "encode_seconds": cost.encode,
                "adapt_seconds": cost.adapt,
            }
            for cost in measured.costs
        ],
    }
    write_object(path, content)


def costs_of(content: Any) -> Measured:
    """What `write_costs` wrote, parsed; a ValueError says what is wrong with it."""
    try:
        name, images, classes = (content[key] for key in ("features", "images", "classes"))
        seconds = {
            # The first files had no number of images for each method: it was that of all.
            str(row["method"]): (
                row.get("images", images),
                row["encode_seconds"],
                row["adapt_seconds"],
            )
            for row in content["costs"]
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a file of `soba bench efficiency`") from error
    counts = {"images": images, "classes": classes}
    counts |= {f"images of {method}": count for method, (count, *_) in seconds.items()}
    for what, count in counts.items():
        if not isinstance(count, int) or not _is_positive(count):
            raise ValueError(f"not a file of `soba bench efficiency`: {what} is {count!r}")
    for method, (_, encode, adapt) in seconds.items():
        if not _is_positive(adapt) or not (encode is None or _is_positive(encode)):
            raise ValueError(f"not a cost: {method} takes {encode!r} and {adapt!r} seconds")
    if _CONTROL not in seconds:
        raise ValueError(f"not a file of `soba bench efficiency`: no {_CONTROL} to compare with")
    return Measured(str(name), images, classes, tuple(_priced(seconds)))


def _is_positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < _MOST_SECONDS
