"""Where adapters break: methods side by side on hard streams, or on hard sets seen at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from soba.adapt.base import Adapter
from soba.bench.evaluate import method_settings, transduces
from soba.bench.metrics import (
    accuracy,
    calibration_error,
    expected_tail_accuracy,
    softmax,
    tail_size,
)
from soba.feature_set import FeatureSet
from soba.registry import adapter_class, card
from soba.studies.scenarios import STREAMS, WHOLE_SETS, Scenario, build

ORDERS, MORE_ORDERS = 5, 20
FEW = 500  # with fewer scored images an order says little: more orders
QUICK_ORDERS = 3
QUICK = {  # for a first look: by whether sets are seen at once
    False: ("shuffled", "quarter", "sorted", "bursts 0.1"),
    True: ("shuffled", "quarter", "batches of 4"),
}
CONTROL = "zero-shot"  # what gains are measured against


@dataclass(frozen=True)
class Stressed:
    """One order of a scenario: how a method did on the images that are scored.

    `second_half` is the accuracy on the later half of the stream, None where none of it is scored
    or the whole set was seen at once.
    """

    scenario: str
    method: str
    seed: int
    scored: int
    accuracy: float
    second_half: float | None
    calibration_error: float
    seconds: float
    hyper_parameters: dict[str, Any]
    transductive: bool = False


@dataclass(frozen=True)
class Part:
    """A scenario as it is to be run: in how many orders, and of how many images."""

    scenario: str
    orders: int
    rows: int  # of the first order; others differ a little where classes are uneven


def planned(
    features: FeatureSet,
    scenarios: Iterable[str],
    *,
    orders: int | None = None,
    transductive: bool = False,
) -> list[Part]:
    """What `stress` runs each method on; `orders` is for every scenario."""
    if orders is not None and orders < 1:
        raise ValueError(f"orders must be at least 1, not {orders}")
    features.check_values()
    parts = []
    for name in scenarios:
        first = build(name, features, 0)
        # All images at once have one order only.
        once = transductive and name == "shuffled"
        usual = MORE_ORDERS if int(first.scored.sum()) < FEW else ORDERS
        parts.append(Part(name, 1 if once else orders or usual, len(first.labels)))
    return parts


def stress(
    features: FeatureSet,
    methods: Iterable[str],
    *,
    scenarios: Iterable[str] | None = None,
    seed: int = 0,
    orders: int | None = None,
    transductive: bool = False,
    step: Callable[[Stressed], None] = lambda record: None,
) -> list[Stressed]:
    """One record per (scenario, order, method); orders are seeded from `seed` on.

    Without `orders` there are 5, and 20 where fewer than 500 images are scored. With
    `transductive`, methods see each set at once. `step` is called after each stream; those of the
    largest scenario's first order come first, since they tell how long the others will take.
    """
    methods = list(methods)
    check_methods(methods, transductive)
    if scenarios is None:
        scenarios = WHOLE_SETS if transductive else STREAMS
    parts = planned(features, scenarios, orders=orders, transductive=transductive)
    jobs = [(part, order) for part in parts for order in range(seed, seed + part.orders)]
    largest = max(parts, key=lambda part: part.rows, default=None)
    records = []
    for part, order in sorted(jobs, key=lambda job: job != (largest, seed)):
        stream = build(part.scenario, features, order)
        for name in methods:
            at_once = transductive and transduces(name)
            adapter = make(name, stream, features.logit_scale)
            scores = run_one(adapter, stream, at_once)
            records.append(Stressed(part.scenario, name, order, **scores))
            step(records[-1])
    place = {part.scenario: number for number, part in enumerate(parts)}
    return sorted(records, key=lambda record: (place[record.scenario], record.seed))


def check_methods(methods: Sequence[str], transductive: bool = False) -> None:
    """Raise for methods that have nothing to stress."""
    for name in methods:
        if card(name).few_shot:
            raise ValueError(f"{name} learns from labels, not from the stream: nothing to stress")
        if card(name).tunes_prompts:
            raise ValueError(f"{name} tunes prompts through an encoder, and there is none here")
        if card(name).family == "transductive" and not transductive:
            raise ValueError(
                f"{name} sees a whole set at once: it has no stream to stress; ask for whole sets, "
                "--transductive"
            )
        if transductive and name != CONTROL and not transduces(name):
            raise ValueError(f"{name} cannot see a whole set at once: stress it on streams")


def make(name: str, stream: Scenario, logit_scale: float) -> Adapter:
    """A method as it runs here: the paper's settings for the paper's methods."""
    settings = method_settings(name, len(stream.labels))
    return adapter_class(name)(stream.text_features, logit_scale=logit_scale, **settings)


def run_one(adapter: Any, stream: Scenario, at_once: bool = False) -> dict[str, Any]:
    """Stream a scenario through an adapter, or let it see each set at once: what it got right."""
    start = time.perf_counter()
    if at_once:
        ends = np.cumsum(stream.sets or (len(stream.labels),))[:-1]
        sets = np.split(stream.features, ends)
        logits = np.concatenate([adapter.transduce(rows) for rows in sets])
    else:
        logits = adapter.adapt(stream.features)
    seconds = time.perf_counter() - start
    probabilities = softmax(logits)
    scored = stream.scored
    labels = stream.labels[scored]
    half = len(stream.labels) // 2
    second = scored & (np.arange(len(scored)) >= half) & (not at_once)
    return {
        "scored": len(labels),
        "accuracy": accuracy(logits[scored], labels),
        "second_half": accuracy(logits[second], stream.labels[second]) if second.any() else None,
        "calibration_error": calibration_error(probabilities[scored], labels),
        "seconds": seconds,
        "hyper_parameters": adapter.params,
        "transductive": at_once,
    }


def summarise(records: list[Stressed]) -> list[dict[str, Any]]:
    """Per scenario and method, over the orders.

    Mean and worst accuracy, the expected tail accuracy and the number of orders that it is the
    mean of, gain over zero-shot on the same orders, calibration error.
    """
    cells: dict[tuple[str, str], list[Stressed]] = {}
    for record in records:
        cells.setdefault((record.scenario, record.method), []).append(record)
    rows = []
    for (scenario, method), runs in cells.items():
        control = {r.seed: r for r in cells.get((scenario, CONTROL), [])}
        scores = [run.accuracy for run in runs]
        gains = [run.accuracy - control[run.seed].accuracy for run in runs if control]
        rows.append(
            {
                "scenario": scenario,
                "method": method,
                "transductive": runs[0].transductive,
                "orders": len(runs),
                "scored": runs[0].scored,
                "accuracy_mean": float(np.mean(scores)),
                "accuracy_worst": min(scores),
                "expected_tail_accuracy": expected_tail_accuracy(scores),
                "tail_orders": tail_size(len(scores)),
                "gain": float(np.mean(gains)) if gains else None,
                "gain_worst": float(np.min(gains)) if gains else None,
                "calibration_error": float(np.mean([run.calibration_error for run in runs])),
            }
        )
    return rows
