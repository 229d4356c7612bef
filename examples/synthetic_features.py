"""Write a labelled feature file that looks like CLIP's, to try the commands on.

    python examples/synthetic_features.py features.npz

The numbers that come out of it say that the software runs, and nothing about CLIP: the classes are
Gaussians on a cone, and the text is their mean seen through noise and a modality gap.
"""

import sys
from pathlib import Path

import numpy as np


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "synthetic.npz")
    rng = np.random.default_rng(0)
    classes, per_class, width = 50, 40, 256
    cone, gap = rng.normal(size=width), rng.normal(size=width)
    means = 0.5 * rng.normal(size=(classes, width))
    labels = np.repeat(np.arange(classes), per_class)
    axes = 1.0 / np.sqrt(np.arange(1, width + 1))  # few directions carry most of the scatter
    images = cone + means[labels] + 4.0 * rng.normal(size=(len(labels), width)) * axes
    text = cone + gap + means + 1.2 * rng.normal(size=(classes, width))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        image_features=unit(images),
        text_features=unit(text),
        labels=labels,
        class_names=[f"class {k}" for k in range(classes)],
    )
    print(f"{len(labels)} synthetic images of {classes} classes in {path}")


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


if __name__ == "__main__":
    main()
