"""What adapting costs beside encoding: the paper's runtime table, as ratios, on this machine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from soba.bench.evaluate import evaluate
from soba.bench.paper import quoted
from soba.encode.encoder import Encoder
from soba.encode.store import FeatureSet
from soba.registry import adapter_class

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
