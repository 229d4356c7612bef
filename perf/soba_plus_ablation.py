"""What each estimate of SOBA+ is worth: the table of docs/soba_plus.md.

    python perf/soba_plus_ablation.py rn50.npz photo.npz+art.npz --names "RN50,two domains"

Every row takes one estimate away or changes it. Gains over zero-shot in points of top-1, means over
orders: on the plain shuffled stream of each set, then the mean over sets (worst set) where a
quarter of the classes occur and where the stream is sorted by class. Last the calibration error of
the plain streams, mean over sets.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np
from rivals import feature_set
from soba.adapt._evidence import Evidence
from soba.adapt._mixture import Covariance, Mixture

import soba
from soba.adapt import _evidence, _mixture, _surprise, _weighing, soba_plus
from soba.studies.scenarios import Scenario, build
from soba.studies.stress import run_one

PLAIN, HARD = "all", ("quarter of classes", "sorted by class")
Run = Callable[[Scenario, float], dict[str, Any]]


class QueueOnly(Evidence):
    """No E step: the queue under CLIP's labels is all that the Gaussians are made of."""

    def fit(self):
        queued, moments = self._by_label()
        covariance = Covariance.within(moments, queued)
        model = Mixture.fitted(queued, covariance, self.text)
        return None if model is None else (model, covariance)


class CountsAsOne(Evidence):
    def fit(self):
        self.confidence = np.ones_like(self.confidence)
        sure, self.drawn_confidence = self.drawn_confidence, np.ones_like(self.drawn_confidence)
        fitted = super().fit()
        self.drawn_confidence = sure  # the weight goes by it
        return fitted


class OneForAll(Evidence):
    """All classes have the evidence of the pairs, so all are known."""

    def by_class(self, mass):
        return np.full(len(mass), np.sqrt(super().by_class(mass)).mean() ** 2)


class NoText(Evidence):
    """Class means shrink to their common centre, whatever the text."""

    def __init__(self, queue, drawn, text, logit_scale):
        super().__init__(queue, drawn, text, logit_scale)
        self.text = np.zeros_like(text)


_within = Covariance.within


def uncorrected(moments, shares):
    covariance = _within(moments, shares)
    return None if covariance is None else replace(covariance, overlap=0.0)


def ridge_by_dimensions(moments, shares):
    """r = 10 tr(S) / d, as SOBA+ had it before."""
    covariance = _within(moments, shares)
    if covariance is None:
        return None
    shrunk, d = np.linalg.inv(covariance.inverse.astype(np.float64)), len(covariance.inverse)
    ridge = 10.0 * covariance.trace / d
    shift = ridge - (np.trace(shrunk) - covariance.trace) / d
    inverse = np.linalg.inv(shrunk + shift * np.eye(d))
    overlap = d - ridge * float(np.trace(inverse))
    return Covariance(covariance.trace, inverse.astype(np.float32), overlap)


def no_gates(xp, best, weighing):
    return float(weighing[0] * weighing[1])


def likeliest(xp, best, weighing):
    return best


def variant(*patches: Any, **options: object) -> Run:
    def run(stream: Scenario, logit_scale: float) -> dict[str, Any]:
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            adapter = soba.SOBAPlus(stream.text_features, logit_scale=logit_scale, **options)
            return run_one(adapter, stream)

    return run


def weighing(**values: object) -> Run:
    return variant(mock.patch.multiple(_weighing, **values))


def evidence(cls: type[Evidence]) -> Run:
    return variant(mock.patch.object(soba_plus, "Evidence", cls))


def covariance(within: Callable) -> Run:
    return variant(mock.patch.object(Covariance, "within", within))


def uniform(logits: np.ndarray) -> np.ndarray:
    return np.full(logits.shape[1], 1.0 / logits.shape[1])


def in_full(chances: np.ndarray, power: float) -> np.ndarray:
    return np.log(chances * len(chances))


VARIANTS = {
    "soba+": variant(),
    "no EM: the queue only": evidence(QueueOnly),
    "no class prior in EM": variant(mock.patch.object(_evidence, "class_prior", uniform)),
    "class prior in full in EM": variant(mock.patch.object(_evidence, "held_back", in_full)),
    "samples count as 1": evidence(CountsAsOne),
    "weight not by CLIP's doubt": weighing(ENOUGH_DOUBT=1e-9),
    "not by what bears CLIP out": weighing(BORNE_OUT=0.0),
    "no spread": weighing(SPREAD_POWER=0.0),
    "spread in any case": weighing(_oversure=lambda confidence, agree: 1.0),
    "not by how familiar an image is": weighing(strength=no_gates, reference=likeliest),
    "known classes lose to none": weighing(reference=likeliest),
    "rare classes corrected in full": variant(mock.patch.object(_evidence, "RARE", np.inf)),
    "half the least scatter": variant(mock.patch.object(_mixture, "LEAST_SCATTER", 0.25)),
    "no evidence by class": evidence(OneForAll),
    "no text prior": evidence(NoText),
    "no bias correction": covariance(uncorrected),
    "ridge 10 tr(S)/d": covariance(ridge_by_dimensions),
    "half the weight": weighing(WEIGHT=0.6),
    "twice the weight": weighing(WEIGHT=2.4),
    "no cooling": weighing(temperature_for=lambda logits, confidence: 1.0),
    "never surer than CLIP": weighing(LEEWAY=0.0),
    "128 drawn": variant(sample_size=128),
    "1024 drawn": variant(sample_size=1024),
    "refresh at 40% growth": variant(mock.patch.object(soba_plus, "GROWTH", 40)),
    "refresh on schedule only": variant(mock.patch.object(_surprise, "MARGIN", np.inf)),
}


def measure(features: soba.FeatureSet, orders: int) -> dict[tuple[str, str], np.ndarray]:
    """(variant, scenario) -> mean gain over zero-shot and mean calibration error."""
    names, runs = ("accuracy", "calibration_error"), {}
    for scenario in (PLAIN, *HARD):
        for seed in range(orders):
            stream = build(scenario, features, seed)
            clip = run_one(
                soba.ZeroShot(stream.text_features, logit_scale=features.logit_scale), stream
            )
            for name, run in VARIANTS.items():
                ours = run(stream, features.logit_scale)
                row = [ours[key] - (clip[key] if key == "accuracy" else 0.0) for key in names]
                runs.setdefault((name, scenario), []).append(row)
    return {key: np.mean(rows, axis=0) for key, rows in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FEATURES", help="A+B: one stream of both")
    parser.add_argument("--names", help="comma-separated headings; default: the files' names")
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--only", help="comma-separated rows; default: all")
    options = parser.parse_args()
    if options.only:
        for name in set(VARIANTS) - set(options.only.split(",")):
            del VARIANTS[name]
    first = [paths.split("+")[0] for paths in options.files]
    names = options.names.split(",") if options.names else [Path(path).stem for path in first]
    sets = []
    for paths in options.files:
        print(paths, file=sys.stderr, flush=True)
        sets.append(measure(feature_set(paths), options.orders))
    print(f"| variant | {' | '.join(names)} | {' | '.join(HARD)} | calibration error |")
    print("|---|" + "---:|" * (len(names) + 3))
    for name in VARIANTS:
        cells = [f"{cells[name, PLAIN][0]:+.2f}" for cells in sets]
        for scenario in HARD:
            gains = [cells[name, scenario][0] for cells in sets]
            worst = int(np.argmin(gains))
            cells.append(f"{np.mean(gains):+.2f} ({gains[worst]:+.1f} {names[worst]})")
        error = np.mean([cells[name, PLAIN][1] for cells in sets])
        print(f"| {name} | {' | '.join(cells)} | {error:.1f} |")


if __name__ == "__main__":
    main()
