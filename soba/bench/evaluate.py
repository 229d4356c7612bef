"""Methods on shuffled streams of one feature set -> result records."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

import soba
from soba.adapt.base import Adapter, parameter_defaults
from soba.bench.method_factory import MethodFactory
from soba.bench.metrics import (
    accuracy,
    accuracy_at_coverage,
    accuracy_over_stream,
    calibration_error,
    mean_and_std,
    softmax,
)
from soba.bench.paper_settings import unlike_the_paper
from soba.bench.record import Record
from soba.bench.tuning import PAPER
from soba.feature_set import FeatureSet
from soba.registry import adapter_class, card, provenance_of

More = Callable[[np.ndarray, np.ndarray], dict[str, Any]]  # (order, logits) -> further fields
COVERAGES = np.arange(1, 21) / 20  # shares of the samples that are answered

# Packages that decide the last bits of features and scores, by distribution name.
_PACKAGES = ("torch", "open_clip_torch", "onnxruntime", "pillow")
_BLOCK_VALUES = 1 << 24  # of views, read at a time


def evaluate(
    features: FeatureSet,
    methods: Iterable[str],
    *,
    orders: int | Sequence[int] = 5,
    overrides: dict[str, Any] | None = None,
    min_confidence: float = 0.0,
    step: Callable[[str, int], None] = lambda method, seed: None,
    factory: MethodFactory | None = None,
    arrange: Callable[[int], np.ndarray] | None = None,
    more: More = lambda order, logits: {},
    keep: Callable[[Record], None] = lambda record: None,
    transductive: bool = False,
) -> list[Record]:
    """One record per (method, seed): the stream in the order `default_rng(seed).permutation(n)`.

    An episodic method takes each image by itself, so it runs once, in the order of the file.
    `orders` are a number of seeds, or the seeds themselves. `overrides` go to every method that
    has such a hyper-parameter; samples whose probability stays below `min_confidence` count as not
    answered; `step` is called after each stream. `factory` has what some methods need besides: an
    encoder, a source set. All that can be checked is checked before the first stream runs.

    `arrange` gives another order for each seed, to episodic methods too. What `more` makes of an
    order and its logits goes into the record; `keep` gets each record as soon as there is one.

    With `transductive`, methods that have `transduce` see the whole set at once, and run once;
    methods of that family always do. Their records say so.
    """
    methods = list(methods)
    seeds = range(orders) if isinstance(orders, int) else orders
    if len(seeds) < 1:
        raise ValueError(f"orders must be at least 1, not {orders}")
    factory = MethodFactory(features) if factory is None else factory
    settings = checked_settings(factory, methods, overrides)
    for name in methods:
        factory.check_encoder(name, settings[name])
    features.check_values()
    records = []
    for name in methods:
        at_once = transduces(name, transductive)
        for seed in seeds[: streams(name, len(seeds), transductive)]:
            order = None if arrange is None else arrange(seed)
            adapter = factory.make(name, settings[name])
            records.append(_run(adapter, factory, seed, min_confidence, order, more, at_once))
            keep(records[-1])
            step(name, seed)
    return records


def checked_settings(
    factory: MethodFactory, methods: Iterable[str], overrides: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """The hyper-parameters of each method; raises what can be known without an encoder."""
    features, methods = factory.features, list(methods)
    if features.labels is None:
        raise ValueError(f"{features.source}: has no labels, accuracy cannot be measured")
    if len(features) == 0:
        raise ValueError(f"{features.source}: holds no images")
    settings = {name: method_settings(name, len(features), overrides) for name in methods}
    unused = set(overrides or {}) - {key for chosen in settings.values() for key in chosen}
    if unused:
        raise ValueError(f"none of {', '.join(methods)} has a {' or '.join(sorted(unused))}")
    for name in methods:
        factory.check_features(name, settings[name])
    return settings


def transduces(method: str, asked: bool = True) -> bool:
    """Whether a method sees whole sets: always, or where that is asked for and it can."""
    always = card(method).family == "transductive"
    return always or (asked and hasattr(adapter_class(method), "transduce"))


def streams(method: str, orders: int, transductive: bool = False) -> int:
    """How often a method runs: once if it takes each image by itself, or all of them at once."""
    about = card(method)
    once = about.episodic or about.few_shot or transduces(method, transductive)
    return 1 if once else orders


def method_settings(
    name: str, total: int, overrides: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The hyper-parameters of a method in an evaluation: the paper's, unless overridden."""
    known = parameter_defaults(adapter_class(name))
    chosen = {key: value for key, value in (overrides or {}).items() if key in known}
    if "refresh" in known:
        schedule = card(name).paper.schedule
        if schedule is not None:
            chosen.setdefault("refresh", schedule)
        if chosen.get("refresh") == "tenths":
            chosen["total"] = total
    return chosen


@cache
def versions() -> dict[str, str]:
    """Of Python and of the packages that take part, those that are installed.

    They are looked up, not imported: numpy alone is enough to evaluate.
    """
    installed = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "soba-tta": soba.__version__,
    }
    for name in _PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def summarise(records: list[Record]) -> list[dict[str, Any]]:
    """Per method: mean and standard deviation of top-1, gain over zero-shot, and so on.

    Streams and whole sets are rows of their own.
    """
    by_method: dict[tuple[str, bool], list[Record]] = {}
    for record in records:
        by_method.setdefault((record.method, record.transductive), []).append(record)
    zero_shot = {r.seed: r.accuracy for r in by_method.get(("zero-shot", False), [])}
    rows = []
    for (name, at_once), runs in by_method.items():
        mean, std = mean_and_std([run.accuracy for run in runs])
        gains = [run.accuracy - zero_shot[run.seed] for run in runs if zero_shot]
        rows.append(
            {
                "method": name,
                "transductive": at_once,
                "orders": len(runs),
                "accuracy_mean": mean,
                "accuracy_std": std,
                "gain": float(np.mean(gains)) if gains else None,
                "calibration_error": float(np.mean([run.calibration_error for run in runs])),
                "expected_accuracy": _mean_estimate(runs),
                "seconds": float(np.mean([run.seconds for run in runs])),
                "answered": float(np.mean([run.answered for run in runs])),
                "accuracy_answered": _mean(run.accuracy_answered for run in runs),
                "accuracy_at_coverage": np.mean(
                    [run.accuracy_at_coverage for run in runs], axis=0
                ).tolist(),
            }
        )
    return rows


def _mean_estimate(runs: list[Record]) -> dict[str, float] | None:
    """Of the runs that have an expected accuracy: the mean over orders."""
    estimates = [run.expected_accuracy for run in runs if run.expected_accuracy is not None]
    if not estimates:
        return None
    return {name: float(np.mean([each[name] for each in estimates])) for name in estimates[0]}


def _expected_accuracy(adapter: Adapter) -> dict[str, float] | None:
    """In percent, where the method offers an estimate."""
    estimate = getattr(adapter, "expected_accuracy", lambda: None)()
    if estimate is None:
        return None
    return {"zero_shot": 100.0 * estimate.zero_shot, "adapted": 100.0 * estimate.adapted}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _whole(adapter: Any, images: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, float]:
    """Logits of a whole set at once, and the seconds they took."""
    rows = images[order]
    start = time.perf_counter()
    logits = adapter.transduce(rows)
    return logits, time.perf_counter() - start


def _stream(adapter: Adapter, images: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, float]:
    """Logits of a stream, and the seconds they took."""
    # Views of a large set do not fit in memory: they are read a few images at a time.
    step = len(order) if images.ndim == 2 else max(1, _BLOCK_VALUES // images[0].size)
    blocks, seconds = [], 0.0
    for at in range(0, len(order), step):
        block = images[order[at : at + step]]
        start = time.perf_counter()
        blocks.append(adapter.adapt(block))
        seconds += time.perf_counter() - start
    return np.concatenate(blocks), seconds


def _run(
    adapter: Adapter,
    factory: MethodFactory,
    seed: int,
    min_confidence: float,
    order: np.ndarray | None,
    more: More,
    at_once: bool,
) -> Record:
    features, name = factory.features, adapter.name
    assert features.labels is not None
    orderless = adapter.card.episodic or at_once
    said = "as stored" if orderless and order is None else "shuffled"
    if order is None:
        order = np.arange(len(features))
        if not orderless:
            order = np.random.default_rng(seed).permutation(order)
    images = factory.images(name)
    logits, seconds = (_whole if at_once else _stream)(adapter, images, order)
    labels = features.labels[order]
    probabilities = softmax(logits)
    sure = probabilities.max(axis=1) >= min_confidence
    return Record(
        dataset=features.source.stem if features.source else "",
        encoder=features.encoder_fingerprint,
        templates=features.templates_fingerprint,
        method=name,
        seed=seed,
        order=said,
        transductive=at_once,
        samples=len(labels),
        views=images.shape[1] if images.ndim == 3 else 1,
        accuracy=accuracy(logits, labels),
        calibration_error=calibration_error(probabilities, labels),
        answered=100.0 * float(sure.mean()),
        accuracy_answered=accuracy(logits[sure], labels[sure]) if sure.any() else None,
        accuracy_at_coverage=accuracy_at_coverage(probabilities, labels, COVERAGES).tolist(),
        accuracy_over_stream=[] if at_once else accuracy_over_stream(logits, labels).tolist(),
        expected_accuracy=_expected_accuracy(adapter),
        seconds=seconds,
        hyper_parameters=adapter.params,
        tuned_on=getattr(adapter, "tuned_on_", None) or PAPER,
        unlike_the_paper=unlike_the_paper(name, adapter.params),
        used=getattr(adapter, "used_", None),
        provenance=provenance_of(type(adapter)),
        versions=versions(),
        cpus=os.cpu_count(),
        **more(order, logits),
    )
