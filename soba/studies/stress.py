"""Where adapters break: methods side by side on hard streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from soba.adapt.base import Adapter
from soba.bench.evaluate import method_settings
from soba.bench.metrics import accuracy, calibration_error, softmax
from soba.feature_set import FeatureSet
from soba.registry import adapter_class, card
from soba.studies.scenarios import SCENARIOS, Scenario, build

FEW = 500  # with fewer scored images an order says little: more orders


@dataclass(frozen=True)
class Stressed:
    """One stream of a scenario: how a method did on the images that are scored.

    `second_half` is the accuracy on the later half of the stream, None where none of it is scored.
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


def orders_of(scenario: Scenario) -> int:
    """How many orders a scenario is run in."""
    return 20 if int(scenario.scored.sum()) < FEW else 5


def stress(
    features: FeatureSet,
    methods: Iterable[str],
    *,
    scenarios: Iterable[str] = tuple(SCENARIOS),
    seed: int = 0,
    step: Callable[[str], None] = lambda name: None,
) -> list[Stressed]:
    """One record per (scenario, method, order); orders are seeded from `seed` on.

    `step` is called after each stream.
    """
    methods, scenarios = list(methods), list(scenarios)
    for name in methods:
        if card(name).few_shot:
            raise ValueError(f"{name} learns from labels, not from the stream: nothing to stress")
        if card(name).family == "transductive":
            raise ValueError(f"{name} sees a whole set at once: it has no stream to stress")
        if card(name).tunes_prompts:
            raise ValueError(f"{name} tunes prompts through an encoder, and there is none here")
    features.check_values()
    records = []
    for scenario in scenarios:
        for order in range(seed, seed + orders_of(build(scenario, features, 0))):
            stream = build(scenario, features, order)
            for name in methods:
                scores = run_one(make(name, stream, features.logit_scale), stream)
                records.append(Stressed(scenario, name, order, **scores))
                step(scenario)
    return records


def make(name: str, stream: Scenario, logit_scale: float) -> Adapter:
    """A method as it runs here: the paper's settings for the paper's methods."""
    settings = method_settings(name, len(stream.labels))
    return adapter_class(name)(stream.text_features, logit_scale=logit_scale, **settings)


def run_one(adapter: Adapter, stream: Scenario) -> dict[str, Any]:
    """Stream a scenario through an adapter: what it got right, and how sure it was."""
    start = time.perf_counter()
    logits = adapter.adapt(stream.features)
    seconds = time.perf_counter() - start
    probabilities = softmax(logits)
    scored = stream.scored
    labels = stream.labels[scored]
    half = len(stream.labels) // 2
    second = scored & (np.arange(len(scored)) >= half)
    return {
        "scored": len(labels),
        "accuracy": accuracy(logits[scored], labels),
        "second_half": accuracy(logits[second], stream.labels[second]) if second.any() else None,
        "calibration_error": calibration_error(probabilities[scored], labels),
        "seconds": seconds,
        "hyper_parameters": adapter.params,
    }


def summarise(records: list[Stressed]) -> list[dict[str, Any]]:
    """Per scenario and method: mean and worst order, gain over zero-shot, calibration error."""
    cells: dict[tuple[str, str], list[Stressed]] = {}
    for record in records:
        cells.setdefault((record.scenario, record.method), []).append(record)
    rows = []
    for (scenario, method), runs in cells.items():
        control = {r.seed: r for r in cells.get((scenario, "zero-shot"), [])}
        scores = np.array([run.accuracy for run in runs])
        gains = [run.accuracy - control[run.seed].accuracy for run in runs if control]
        rows.append(
            {
                "scenario": scenario,
                "method": method,
                "orders": len(runs),
                "scored": runs[0].scored,
                "accuracy_mean": float(scores.mean()),
                "accuracy_worst": float(scores.min()),
                "gain": float(np.mean(gains)) if gains else None,
                "gain_worst": float(np.min(gains)) if gains else None,
                "calibration_error": float(np.mean([run.calibration_error for run in runs])),
            }
        )
    return rows
