"""How many of 50 planted label errors cleanlab finds, on plain CLIP's probabilities and on ours.

    python perf/label_errors.py FEATURES... [--draws 5]

Fifty labels are replaced by other classes, drawn anew each time. Counted are the planted ones among
the first fifty that `soba.bridges.find_label_errors` names, and among all it names.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

import numpy as np

import soba
from soba.bridges import find_label_errors

PLANTED = 50
METHODS = ("zero-shot", "soba+")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("features", nargs="+")
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    for path in options.features:
        original = soba.FeatureSet.load(path)
        for method in METHODS:
            counts = np.array([found(original, method, seed) for seed in range(options.draws)])
            first, all_, named = counts.mean(axis=0)
            spread = counts[:, 0].std()
            print(
                f"{path} {method}: {first:.1f} ± {spread:.1f} among the first {PLANTED}, "
                f"{all_:.1f} among all {named:.1f} named"
            )
    return 0


def found(original: soba.FeatureSet, method: str, seed: int) -> tuple[int, int, int]:
    rng, labels = np.random.default_rng(seed), np.array(original.labels)
    rows = rng.choice(len(labels), PLANTED, replace=False)
    classes = len(original.text_features)
    labels[rows] = (labels[rows] + rng.integers(1, classes, PLANTED)) % classes
    errors = find_label_errors(dataclasses.replace(original, labels=labels), method=method)
    named = [error.index for error in errors]
    planted = set(rows.tolist())
    return len(planted & set(named[:PLANTED])), len(planted & set(named)), len(named)


if __name__ == "__main__":
    sys.exit(main())
