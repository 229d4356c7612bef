"""Features that an attacker would send, made of (features, text, seed): unit rows, no labels used.

`ATTACKS` names them; perf/poison.py measures what they cost. CLIP is surest of them, and they lie
among images of other classes.
"""

import numpy as np

NOISE = 0.002  # in every coordinate of a copy


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
            rows.append(_moved(row + rng.normal(0, NOISE, len(row)), text, label, margin))
    return np.asarray(rows, np.float32)


def copied(features, text, seed, *, lead, copies=16, classes=None):
    """(classes * copies, d): for each class, copies of one image of another class, moved to it.

    The image is drawn among those that CLIP calls another class, and moved towards the text of the
    class until its cosine leads by `lead`. `classes` is how many are attacked, drawn by chance;
    all by default. Rows come class by class.
    """
    rng = np.random.default_rng(seed)
    called = (features @ text.T).argmax(axis=1)
    attacked = np.arange(len(text)) if classes is None else rng.permutation(len(text))[:classes]
    blocks = []
    for label in attacked:
        image = features[rng.choice(np.flatnonzero(called != label))]
        near = _towards(image, text, label, lead)
        block = near + rng.normal(0, NOISE, (copies, len(near)))
        blocks.append(block / np.linalg.norm(block, axis=1, keepdims=True))
    return np.concatenate(blocks).astype(np.float32)


def lead_of(row, text, label):
    """By how much the cosine of a class is above any other's."""
    cosines = text @ row
    return float(cosines[label] - np.delete(cosines, label).max())


ATTACKS = {  # name -> (features, text, seed) -> rows
    "crafted, lead 0.25": lambda features, text, seed: crafted(features, text, seed=seed),
    "copies, lead 0.10": lambda features, text, seed: copied(features, text, seed, lead=0.10),
    "copies, lead 0.05": lambda features, text, seed: copied(features, text, seed, lead=0.05),
    "near-copies": lambda features, text, seed: copied(
        features, text, seed, lead=0.10, copies=300, classes=4
    ),
}


def _towards(row, text, label, lead):
    """The first step on the way from an image to a text where the text leads by so much."""
    for step in np.linspace(0.0, 1.0, 101):  # where none does, the text itself
        moved = (1.0 - step) * row + step * text[label]
        moved = moved / np.linalg.norm(moved)
        if lead_of(moved, text, label) >= lead:
            break
    return moved


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
