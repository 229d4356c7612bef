"""The formula of SOBA+: CLIP's logits, and beside them what the Gaussians and the class prior say.

    logits_k = (z_k + w (e_k log q_k + h log(C pi_k))) / (1 + w e),    w = WEIGHT a H

- z = CLIP's logits, p = softmax(z), and H the entropy of p in nats, CLIP's doubt. Each expert is
  weighed by the other's doubt, so where CLIP is sure nothing is added.
- a >= 1 is CLIP's overconfidence: how much more often two draws from p agree than a draw from p
  and one from e q pi^h + (1 - e) p. Far from home CLIP is sure of what the images contradict.
- q = softmax(G), what equally frequent Gaussians say (`model.py`). log q <= 0, so a class without
  evidence e_k keeps CLIP's logit, and no list of known classes is needed. For images that pi was
  counted from, in EM and in whole sets, q_k is exp(G_k) / sum_j (pi_j / max pi)^h exp(G_j): classes
  that hardly come are no rivals, or a class that is alone would lose to all that are absent.
- pi is the class prior and h how far it is believed (`prior.py`).
- 1 + w e, with e the evidence behind an average image, is the weight of all experts together: a
  logarithmic opinion pool has weights that sum to one, or it counts twice what its experts share.
  It changes probabilities and no label.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from soba.adapt._arrays import Array

WEIGHT = 2.0  # of the Gaussians beside CLIP, for each nat of CLIP's doubt


def add_experts(
    xp: Any,
    logits: Array,
    scores: Array,
    weight: Array,
    evidence: Array,
    prior: Array,
    rivals: Array | float = 0.0,
) -> None:
    """Add to CLIP's logits (n, C), in place, what the Gaussians' scores G (n, C) say; takes both.

    `weight` is (n,); evidence, h log(C pi), and the log weights of the classes that q is shared out
    among, are of all classes (C,), or of some for each row.
    """
    scores -= xp.max(scores, axis=-1, keepdims=True)
    scores -= xp.log(xp.sum(xp.exp(scores + rivals), axis=-1, keepdims=True))
    scores *= evidence
    scores += prior
    scores *= weight[:, None]
    logits += scores


def pool(
    xp: Any,
    logits: Array,
    scores: Array,
    doubt: Array,
    evidence: Array,
    prior: Array,
    summary: np.ndarray,
    rivals: Array | float = 0.0,
) -> None:
    """Turn CLIP's logits (n, C), in place, into those of SOBA+; takes the scores.

    `summary` holds a and e.
    """
    overconfidence, average = map(float, summary)
    weight = (WEIGHT * overconfidence) * doubt
    add_experts(xp, logits, scores, weight, evidence, prior, rivals)
    logits /= (1.0 + average * weight)[:, None]


def agreement(xp: Any, own: Array, told: Array, counts: Array) -> tuple[float, float]:
    """Sums over images, by their counts (n,), of how often two draws agree: p and p, p and q."""
    alike, other = xp.vecdot(own, own), xp.vecdot(own, told)
    return float(xp.sum(counts * alike)), float(xp.sum(counts * other))


def overconfidence(alike: float, other: float, evidence: float) -> float:
    """a, from the sums of `agreement`: q counts as far as there is evidence, p for the rest."""
    alike = max(alike, 1e-30)
    return max(alike / (evidence * other + (1.0 - evidence) * alike), 1.0)
