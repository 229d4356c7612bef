"""Speed of MTA on cached views, as a ratio measured in one run on one thread.

    python perf/views.py            300 images x 64 views x 512, 200 classes
    python perf/views.py --small    10 images, and no bar: seconds

The base is the per-image loop of tests/helpers/reference.py in the same float32: numpy over the
views of an image, but for its bandwidths, which go view by view. The command fails if MTA is not
10 times faster, or if it predicts a class that the loop does not.
"""

from __future__ import annotations

import os

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy starts its threads

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import soba

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
import reference

BAR = 10.0


def views_of(
    images: int, views: int, width: int, classes: int, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Clustered images, each scattered into views, and text features for them: float32."""
    rng = np.random.default_rng(0)
    text = reference.unit(rng.normal(size=(classes, width)))
    image = 0.5 * text[rng.integers(classes, size=images)]
    image += reference.unit(rng.normal(size=(images, width)))
    scatter = reference.unit(rng.normal(size=(images, views, width)))
    features = reference.unit(image[:, None, :] + noise * scatter)
    return features.astype(np.float32), text.astype(np.float32)


def measure(images: int, views: int, width: int, classes: int, noise: float) -> tuple[float, int]:
    """(times faster than the loop, images with another prediction)."""
    stream, text = views_of(images, views, width, classes, noise)
    mta = soba.MTA(text)
    mta.adapt(stream)  # so that both are measured warm
    ratios = []
    # A loop over a part, then all of it at once, in turns: a busy machine slows both.
    predicted = []
    for part in np.array_split(np.arange(images), 5):
        start = time.perf_counter()
        predicted += [reference.mta(image, text, dtype=np.float32) for image in stream[part]]
        between = time.perf_counter()
        logits = mta.adapt(stream)
        end = time.perf_counter()
        ratios.append((between - start) / len(part) / (end - between) * images)
    differ = int((np.array(predicted).argmax(axis=1) != logits.argmax(axis=1)).sum())
    return float(np.median(ratios)), differ


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="few images, and no bar holds")
    arguments = parser.parse_args()
    images = 10 if arguments.small else 300
    size = (images, 64, 512, 200)
    failed = False
    for noise in (0.5,) if arguments.small else (0.3, 1.0, 2.0):
        ratio, differ = measure(*size, noise)
        fine = (arguments.small or ratio >= BAR) and not differ
        print(
            f"MTA.adapt, {images} images x {size[1]} views x {size[2]}, C={size[3]}, "
            f"noise {noise}: {ratio:.1f} times faster than a loop (>= {BAR:g}), "
            f"{differ} predictions differ: {'ok' if fine else 'PAST THE BAR'}",
            flush=True,
        )
        failed |= not fine
    if failed:
        sys.exit("past the bar")


if __name__ == "__main__":
    main()
