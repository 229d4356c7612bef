"""SOBA+ set by set: the tables of docs/soba_plus.md that no other command prints.

    python perf/soba_plus_sets.py rn50.npz photo.npz+art.npz --names "RN50,two domains"

Whole sets at once, what is expected without labels, a logit scale that is wrong, a camera that
stands still, and what forgetting is worth where the images change. Files joined by + are one stream
of several domains.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np
from rivals import feature_set

import soba
from soba.bench.metrics import accuracy, calibration_error, softmax
from soba.studies.scenarios import Scenario, build
from soba.studies.stress import run_one

QUARTERS, ORDERS, CAMERAS, SHIFTS = 3, 3, 10, 5


def zero_shot(features: np.ndarray, text: np.ndarray, scale: float) -> np.ndarray:
    return soba.ZeroShot(text, logit_scale=scale).logits(features)


def at_once(features: soba.FeatureSet) -> list[str]:
    """Zero-shot, transduced, the gain where a quarter of the classes occur, calibration errors."""

    def both(stream: Scenario) -> tuple[np.ndarray, np.ndarray]:
        adapter = soba.SOBAPlus(stream.text_features, logit_scale=features.logit_scale)
        plain = zero_shot(stream.features, stream.text_features, features.logit_scale)
        return plain, adapter.transduce(stream.features)

    whole = build("all", features, 0)
    plain, transduced = both(whole)
    gains = []
    for draw in range(QUARTERS):
        stream = build("quarter of classes", features, draw)
        before, after = (accuracy(logits, stream.labels) for logits in both(stream))
        gains.append(after - before)
    errors = [calibration_error(softmax(x), whole.labels) for x in (plain, transduced)]
    scores = [accuracy(x, whole.labels) for x in (plain, transduced)]
    return [
        *(f"{score:.2f}" for score in scores),
        f"{np.mean(gains):+.1f} ({min(gains):+.1f})",
        *(f"{error:.1f}" for error in errors),
    ]


def expected(features: soba.FeatureSet) -> list[str]:
    """True accuracies beside those expected without labels, at the end of a shuffled stream."""
    rows = []
    for order in range(ORDERS):
        stream = build("all", features, order)
        adapter = soba.SOBAPlus(stream.text_features, logit_scale=features.logit_scale)
        online = adapter.adapt(stream.features)
        plain = zero_shot(stream.features, stream.text_features, features.logit_scale)
        guess = adapter.expected_accuracy()
        assert guess is not None
        rows.append(
            (
                accuracy(plain, stream.labels),
                100.0 * guess.zero_shot,
                100.0 * float(softmax(plain).max(axis=1).mean()),
                accuracy(adapter.logits(stream.features), stream.labels),
                100.0 * guess.adapted,
                calibration_error(softmax(plain), stream.labels),
                calibration_error(softmax(online), stream.labels),
            )
        )
    right, clip, sure, adapted, guessed, error, error_online = np.mean(rows, axis=0)
    return [
        f"{right:.1f}",
        f"{clip:.1f} ({clip - right:+.1f})",
        f"{sure:.1f} ({sure - right:+.1f})",
        f"{adapted:.1f}",
        f"{guessed:.1f} ({guessed - adapted:+.1f})",
        f"{error:.1f}",
        f"{error_online:.1f}",
    ]


def scaled(features: soba.FeatureSet) -> list[str]:
    """What half and twice CLIP's logit scale change in the accuracy of the stream."""

    def score(factor: float) -> float:
        streams = [build("all", features, order) for order in range(ORDERS)]
        return float(
            np.mean(
                [
                    accuracy(
                        soba.SOBAPlus(
                            stream.text_features, logit_scale=factor * features.logit_scale
                        ).adapt(stream.features),
                        stream.labels,
                    )
                    for stream in streams
                ]
            )
        )

    right = score(1.0)
    return [f"{score(factor) - right:+.2f}" for factor in (0.5, 2.0)]


def camera(features: soba.FeatureSet) -> list[str]:
    """Eight images, five frames of each, then a look at all: zero-shot, SOBA+ (the worst draw)."""
    images = np.asarray(features.image_features, np.float32)
    labels = np.asarray(features.labels, np.int64)
    scores = []
    for draw in range(CAMERAS):
        rng = np.random.default_rng(draw)
        frames = np.repeat(images[rng.permutation(len(images))[:8]], 5, axis=0)
        frames = frames + 0.003 * rng.normal(size=frames.shape).astype(np.float32)
        adapter = soba.SOBAPlus(features.text_features, logit_scale=features.logit_scale)
        adapter.adapt(frames)
        scores.append(accuracy(adapter.logits(images), labels))
    plain = zero_shot(images, features.text_features, features.logit_scale)
    return [f"{accuracy(plain, labels):.2f}", f"{np.mean(scores):.2f} ({min(scores):.2f})"]


def forgetting(features: soba.FeatureSet) -> list[str]:
    """Accuracy behind the change of the shift scenario, with all kept and with horizons."""

    def behind(horizon: int | None) -> float:
        scores = []
        for order in range(SHIFTS):
            stream = build("shift", features, order)
            text, scale = stream.text_features, features.logit_scale
            adapter = soba.SOBAPlus(text, logit_scale=scale, horizon=horizon)
            scores.append(run_one(adapter, stream)["second_half"])
        return float(np.mean(scores))

    return [f"{behind(horizon):.2f}" for horizon in (None, 800, 500)]


TABLES = {
    "at_once": (
        at_once,
        "zero-shot | transduced | a quarter of its classes | calibration error, zero-shot"
        " | transduced",
    ),
    "expected": (
        expected,
        "CLIP right | expected | CLIP's mean confidence | adapted right | expected"
        " | calibration error, zero-shot | SOBA+",
    ),
    "scaled": (scaled, "half the scale | twice"),
    "camera": (camera, "zero-shot | after a camera that stands still"),
    "forgetting": (forgetting, "behind a shift, all kept | horizon 800 | horizon 500"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FEATURES")
    parser.add_argument("--names", help="comma-separated; default: the files' names")
    parser.add_argument("--only", default=",".join(TABLES), help="tables, comma-separated")
    options = parser.parse_args()
    names = [Path(paths.split("+")[0]).stem for paths in options.files]
    names = options.names.split(",") if options.names else names
    for table in options.only.split(","):
        row, headings = TABLES[table]
        print(f"| set | {headings} |\n|---{'|---:' * (headings.count('|') + 1)}|")
        for name, paths in zip(names, options.files, strict=True):
            print(f"| {name} | {' | '.join(row(feature_set(paths)))} |", flush=True)
        print()


if __name__ == "__main__":
    main()
