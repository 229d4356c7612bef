"""What poison costs: methods before and after features that an attacker made, on WHU-RS19.

    python perf/poison.py                           # soba+
    python perf/poison.py --methods soba+,tda

A stream sees the first 455 images of a seeded order, then an attack of tests/helpers/crafted.py,
all in one call. The figures are top-1 of `logits` on all real images, mean of the orders, beside
the same stream without the attack. A cost above its bar is marked, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np

import soba
from soba.bench.metrics import accuracy

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
from crafted import ATTACKS

DATA = Path(os.environ.get("SOBA_REAL_DATA", ROOT.parent / "shared" / "data"))
CLEAN_ROWS = 455
# The points of top-1 that an attack may cost.
BARS = {"clip_vitb32": 12.0, "clip_rn50": 30.0}  # 16 rows a class: 304
NEAR_COPIES_BAR = 8.0


def unit(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def costs(features: soba.FeatureSet, method: str, seed: int) -> dict[str, tuple[int, float, float]]:
    """Attack -> its rows, and the accuracy without it and with it."""
    images, text = unit(features.image_features), unit(features.text_features)
    labels = np.asarray(features.labels)
    adapter = soba.create_adapter(method, text, logit_scale=features.logit_scale)
    adapter.adapt(images[np.random.default_rng(seed).permutation(len(images))[:CLEAN_ROWS]])
    clean = accuracy(adapter.logits(images), labels)
    scores = {}
    for name, attack in ATTACKS.items():
        rows, attacked = attack(images, text, seed), adapter.copy()
        attacked.adapt(rows)
        scores[name] = len(rows), clean, accuracy(attacked.logits(images), labels)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", default="soba+", help="that learn from a stream, by name")
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--data", type=Path, default=DATA, help="default: SOBA_REAL_DATA")
    options = parser.parse_args()
    files = {name: options.data / "whurs19" / f"{name}.npz" for name in BARS}
    if absent := [str(path) for path in files.values() if not path.is_file()]:
        parser.error(f"no real features at {', '.join(absent)}; set SOBA_REAL_DATA or --data")
    print("| set | attack | rows | method | clean | attacked | cost | bar | |")
    print("|---|---|---:|---|---:|---:|---:|---:|---|")
    missed = 0
    for name, most in BARS.items():
        features = soba.FeatureSet.load(files[name])
        for method in options.methods.split(","):
            runs = [costs(features, method, seed) for seed in range(options.orders)]
            for attack in ATTACKS:
                count, clean, attacked = np.mean([run[attack] for run in runs], axis=0)
                bar = NEAR_COPIES_BAR if attack == "near-copies" else most
                over = clean - attacked > bar
                missed += over
                print(
                    f"| {name} | {attack} | {count:.0f} | {method} | {clean:.1f} | {attacked:.1f} "
                    f"| {clean - attacked:.1f} | {bar:g} | {'**MISSED**' if over else 'ok'} |",
                    flush=True,
                )
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
