"""What each ingredient of SOBA+ is worth: the table of docs/soba_plus.md.

    python perf/soba_plus_ablation.py FEATURES...

Every row takes one ingredient away or changes it, and runs all scenarios of `soba stress`: mean
gain over zero-shot, the worst scenario, top-1 on the whole set, and how far the calibration error
goes above zero-shot's at most (wrong text aside).
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from unittest import mock

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np

import soba
from soba.adapt import soba_plus
from soba.adapt.soba_plus import SOBAPlus
from soba.studies.scenarios import SCENARIOS, Scenario, build
from soba.studies.stress import orders_of, run_one


class NoTextPrior(SOBAPlus):
    def _model(self, evidence, ridge, trace):  # class means shrink to their common centre
        text, self.text_features = self.text_features, np.zeros_like(self.text_features)
        try:
            return super()._model(evidence, ridge, trace)
        finally:
            self.text_features = text


class NoCorrection(SOBAPlus):
    def _model(self, evidence, ridge, trace):
        ridge = copy.copy(ridge)
        ridge.trace = 0.0
        return super()._model(evidence, ridge, trace)


class EqualCounts(SOBAPlus):
    def _counts_as(self, candidates):
        return np.ones(len(candidates))


class UsualGrowth(SOBAPlus):
    @property
    def _growth(self):
        return {}


def constants(**values: float) -> Callable[[Scenario], SOBAPlus]:
    def make(stream: Scenario, logit_scale: float) -> SOBAPlus:
        patch = mock.patch.multiple(soba_plus, **values)
        patch.start()
        return SOBAPlus(stream.text_features, logit_scale=logit_scale)

    return make


def subclass(cls: type[SOBAPlus], **options: object) -> Callable[[Scenario], SOBAPlus]:
    return lambda stream, logit_scale: cls(stream.text_features, logit_scale=logit_scale, **options)


VARIANTS = {
    "soba+": subclass(SOBAPlus),
    "no text prior": subclass(NoTextPrior),
    "no bias correction": subclass(NoCorrection),
    "covariance hardly shrunk (eps 1)": constants(SHRINKAGE=1.0),
    "covariance a multiple of I (eps 1000)": constants(SHRINKAGE=1000.0),
    "items count as 1, not as p": subclass(EqualCounts),
    "no EM step": constants(SURE=0.0),
    "weight constant, not by evidence": constants(POWER=0.0),
    "weight by evidence to the power 1": constants(POWER=1.0),
    "half the weight": constants(TEMPER=0.025),
    "twice the weight": constants(TEMPER=0.1),
    "usual growth: from max(C, 64), 10%": subclass(UsualGrowth),
    "tenths": lambda stream, logit_scale: SOBAPlus(
        stream.text_features, logit_scale=logit_scale, refresh="tenths", total=len(stream.labels)
    ),
    "no cooling": constants(COOLING=0.0),
    "SOBA, tenths": lambda stream, logit_scale: soba.SOBA(
        stream.text_features, logit_scale=logit_scale, refresh="tenths", total=len(stream.labels)
    ),
    "TDA": lambda stream, logit_scale: soba.TDA(stream.text_features, logit_scale=logit_scale),
}


def measure(make: Callable, features: soba.FeatureSet) -> dict[str, float]:
    gains, worse, whole = {}, {}, 0.0
    for name in SCENARIOS:
        runs = []
        for seed in range(orders_of(build(name, features, 0))):
            stream = build(name, features, seed)
            try:
                ours = run_one(make(stream, features.logit_scale), stream)
            finally:
                mock.patch.stopall()
            clip = run_one(
                soba.ZeroShot(stream.text_features, logit_scale=features.logit_scale), stream
            )
            runs.append([ours[k] - clip[k] for k in ("accuracy", "calibration_error")])
            runs[-1].append(ours["accuracy"])
        gains[name], worse[name], score = np.mean(runs, axis=0)
        whole = score if name == "all" else whole
    worst = min(gains, key=gains.get)
    return {
        "average": np.mean(list(gains.values())),
        "worst": f"{gains[worst]:+.1f} {worst}",
        "all": whole,
        "ece": max(value for name, value in worse.items() if name != "wrong text"),
    }


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        features = soba.FeatureSet.load(path)
        print(f"\n### {features.source.stem}\n", flush=True)
        print("| variant | average gain | worst scenario | all | calibration error at most |")
        print("|---|---|---|---|---|")
        for name, make in VARIANTS.items():
            row = measure(make, features)
            print(
                f"| {name} | {row['average']:+.2f} | {row['worst']} | {row['all']:.2f} "
                f"| {row['ece']:+.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
