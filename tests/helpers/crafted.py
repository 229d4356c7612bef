"""Features that an attacker would send: CLIP is surest of them, and they lie among other images."""

import numpy as np


def crafted(features, text, per_class=16, margin=0.25, seed=0):
    """(C * per_class, d): those of class k look to CLIP like k, and lie where CLIP sees k + 1.

    No labels are needed. Images that CLIP calls k + 1 are moved, as little as it takes, until the
    cosine of text k is larger by `margin` than any other: CLIP is then surer than of real images,
    and the moved ones push these out of the queue of k for good.
    """
    rng = np.random.default_rng(seed)
    called = (features @ text.T).argmax(axis=1)
    rows = []
    for label in range(len(text)):
        others = [(label + step) % len(text) for step in range(1, len(text))]
        victim = next(other for other in others if (called == other).any())
        pool = features[called == victim]
        for row in pool[rng.integers(0, len(pool), per_class)]:
            rows.append(_moved(row + rng.normal(0, 0.002, len(row)), text, label, margin))
    return np.asarray(rows, np.float32)


def _moved(row, text, label, margin):
    row = row / np.linalg.norm(row)
    for _ in range(200):  # where no direction has that margin, the surest that was reached
        cosines = text @ row
        rival = int(np.argmax(np.where(np.arange(len(text)) == label, -np.inf, cosines)))
        if cosines[label] - cosines[rival] > margin:
            break
        row = row + 0.05 * (text[label] - text[rival])
        row /= np.linalg.norm(row)
    return row


def guard_of(labels, per_class, rng):
    """Some samples of each class."""
    return np.concatenate(
        [
            rng.choice(rows, min(per_class, len(rows)), replace=False)
            for label in np.unique(labels)
            if len(rows := np.flatnonzero(labels == label))
        ]
    )
