"""The formula of SOBA+: CLIP's logits, and beside them what the Gaussians and the class prior say.

    logits_k = z_k + w H ( e_k log q_k + h log(C pi_k) )

- z = CLIP's logits, H the entropy of their softmax in nats, CLIP's doubt: each expert is weighed by
  the other's doubt, so where CLIP is sure nothing is added.
- q = softmax(G), what equally frequent Gaussians say (`model.py`). log q <= 0, so a class without
  evidence e_k keeps CLIP's logit and needs no list of known classes.
- pi, h: the class prior and how far it is to be believed (`prior.py`).
"""

from __future__ import annotations

from typing import Any

from soba.adapt._arrays import Array

WEIGHT = 2.0  # nats of the Gaussians against one of CLIP's, for each nat of CLIP's doubt


def add_experts(
    xp: Any, logits: Array, scores: Array, doubt: Array, evidence: Array, prior: Array, weight: float
) -> None:
    """Add to CLIP's logits (n, C), in place, what the Gaussians' scores G (n, C) say; takes both.

    `doubt` is (n,), evidence and prior are of all classes (C,), or of some for each row (n, C).
    """
    scores -= xp.max(scores, axis=-1, keepdims=True)
    scores -= xp.log(xp.sum(xp.exp(scores), axis=-1, keepdims=True))
    scores *= evidence
    scores += prior
    scores *= weight * doubt[:, None]
    logits += scores
