"""The whole job on the embedded default: icons -> tiny CLIP -> adapted streams -> records."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from soba.adapt.base import Adapter
from soba.adapt.ncm import NCM
from soba.adapt.soba import SOBA
from soba.adapt.soba_plus import SOBAPlus
from soba.adapt.tda import TDA
from soba.adapt.zero_shot import ZeroShot
from soba.bench.evaluate import evaluate, method_settings, summarise
from soba.bench.record import Record
from soba.datasets.icons import DOMAINS, SHIFTED, IconSet, icons
from soba.encode.encoder import Encoder
from soba.encode.extract import Extraction
from soba.feature_set import FeatureSet
from soba.registry import create_adapter

METHODS = tuple(cls.card.name for cls in (ZeroShot, NCM, TDA, SOBA, SOBAPlus))
Step = Callable[[str, int], None]  # what was done, and how many units of work it was


@dataclass(frozen=True)
class Domain:
    """One icon domain, encoded and adapted to."""

    name: str
    images: IconSet
    pictures: list[Image.Image]
    features: FeatureSet
    seconds: dict[str, float]  # render, encode
    records: list[Record]

    @property
    def summary(self) -> dict[str, dict[str, Any]]:
        return {row["method"]: row for row in summarise(self.records)}


def run_demo(
    encoder: Encoder,
    *,
    per_class: int = 32,
    orders: int = 5,
    methods: tuple[str, ...] = METHODS,
    seed: int = 0,
    step: Step = lambda what, amount: None,
) -> list[Domain]:
    """Render every domain, encode it, and run all methods over `orders` shuffled streams."""
    domains = []
    for name in DOMAINS:
        images = icons(name, per_class, seed=seed, size=encoder.preprocess.size)
        start = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            pictures = []
            for picture in pool.map(images.image, range(len(images)), chunksize=32):
                pictures.append(picture)
                if len(pictures) % 64 == 0:
                    step(f"drawing {name}", 64)
        step(f"drawing {name}", len(images) % 64)
        rendered = time.perf_counter() - start
        features, encoded = _encode(encoder, images, pictures, step)

        def ran(method: str, order: int, domain: str = name) -> None:
            step(f"{method} on {domain}", 64)

        records = evaluate(features, methods, orders=orders, step=ran)
        seconds = {"render": rendered, "encode": encoded}
        records = [replace(record, dataset=images.name) for record in records]
        domains.append(Domain(name, images, pictures, features, seconds, records))
    return domains


def work_units(per_class: int, orders: int, methods: int) -> int:
    """What `step` will count up to."""
    images = sum(len(icons(name, per_class)) for name in DOMAINS)
    return 2 * images + len(DOMAINS) * orders * methods * 64


def averages(domains: list[Domain]) -> dict[str, float]:
    """Per method, the mean accuracy over the shifted domains."""
    shifted = [domain.summary for domain in domains if domain.name in SHIFTED]
    return {
        method: float(np.mean([summary[method]["accuracy_mean"] for summary in shifted]))
        for method in shifted[0]
    }


def most_gained(domains: list[Domain]) -> Domain:
    """The shifted domain that the report takes its examples from."""
    shifted = [domain for domain in domains if domain.name in SHIFTED]
    return max(shifted, key=lambda domain: float(domain.summary["soba+"]["gain"]))


def adapt_share(domains: list[Domain], method: str = "soba+") -> float:
    """Seconds of adaptation per second of encoding, one stream over each domain."""
    adapting = sum(float(domain.summary[method]["seconds"]) for domain in domains)
    return adapting / sum(domain.seconds["encode"] for domain in domains)


def stream(domain: Domain, method: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Adapter]:
    """(order, logits, adapter) of one stream, as `evaluate` runs it."""
    features = domain.features
    settings = method_settings(method, len(features))
    adapter = create_adapter(
        method, features.text_features, logit_scale=features.logit_scale, **settings
    )
    order = np.random.default_rng(seed).permutation(len(features))
    return order, adapter.adapt(features.image_features[order], ids=order), adapter


@dataclass(frozen=True)
class _Drawn:
    """Pictures that are drawn already, so that drawing is not timed with encoding."""

    keys: tuple[str, ...]
    pictures: list[Image.Image]

    def image(self, index: int) -> Image.Image:
        return self.pictures[index]


def _encode(
    encoder: Encoder, images: IconSet, pictures: list[Image.Image], step: Step
) -> tuple[FeatureSet, float]:
    """Features of drawn pictures, and the seconds that preprocessing and both towers took."""
    counted = 0

    def stepped(done: int, total: int) -> None:
        nonlocal counted
        step(f"encoding {images.name}", done - counted)
        counted = done

    drawn = _Drawn(images.keys, pictures)
    start = time.perf_counter()
    features = Extraction(
        encoder, drawn, images.class_names, images.templates, labels=images.labels
    ).in_memory(stepped)
    return features, time.perf_counter() - start
