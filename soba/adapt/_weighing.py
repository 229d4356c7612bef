"""How much the Gaussians of SOBA+ count against CLIP, from a uniform sample of the stream."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from soba.adapt._arrays import Array, softmax
from soba.adapt._evidence import POWER, Evidence
from soba.adapt._temperature import temperature_for

# No dataset has settings of its own; docs/soba_plus.md has what each of these is worth.
WEIGHT = 1.2  # nats of the Gaussians against one of CLIP's, where CLIP is in doubt
ENOUGH_DOUBT, DOUBT_POWER = 0.3, 2.0  # mean doubt of CLIP from which on the weight is whole
BORNE_OUT = 3.0  # weight for each doubt of CLIP that the Gaussians take away
SPREAD_POWER, LEAST_SPREAD, MOST_SPREAD = 12.0, 0.25, 8.0
OVERSURE = 0.05  # how much surer CLIP is than the Gaussians agree, for spread to count in full
NEW, TYPICAL = 0.02, 0.5  # quantiles of max G: an image below is of a new class; is a usual one
KNOWN = 0.37  # of the best evidence of any class, for a class to be known
CALIBRATED_BY = 256  # samples at most
LEEWAY = 3.0  # how far above CLIP's confidence, in units of how far its agreement is
_NEVER = np.float32(-1e30)  # added to the score of a class that is not to win


def weighed_by(evidence: Evidence, mass: np.ndarray, scores: np.ndarray) -> dict[str, np.ndarray]:
    """All that `weighed` needs, and the calibration; `scores` (m, C) are of the sample."""
    by_class = evidence.by_class(mass) ** POWER
    known = by_class >= KNOWN * by_class.max()
    statistics = {
        "evidence": by_class.astype(np.float32),
        "unknown": np.where(known, np.float32(0.0), _NEVER),
        "weighing": _weighing(evidence, scores, known),
    }
    return statistics | _calibration(evidence, scores, statistics)


def _weighing(evidence: Evidence, scores: np.ndarray, known: np.ndarray) -> np.ndarray:
    """What decides the weight of an answer: [weight, spread, and quantiles of max G]."""
    unknown = np.where(known, np.float32(0.0), _NEVER)
    scores = scores + unknown
    answers, by_clip = scores.argmax(axis=1), (evidence.clip + unknown).argmax(axis=1)
    confidence = evidence.drawn_confidence
    agree = float((answers == evidence.clip.argmax(axis=1)).mean())
    spread = (_perplexity(answers) / _perplexity(by_clip)) ** SPREAD_POWER
    return np.array(
        [
            _weight(confidence, agree),
            np.clip(spread, LEAST_SPREAD, MOST_SPREAD) ** _oversure(confidence, agree),
            *np.quantile(scores.max(axis=1), (NEW, TYPICAL)),
        ]
    )


def _weight(confidence: np.ndarray, agree: float) -> float:
    """What the Gaussians count, from CLIP's confidence in a uniform sample, for a usual image.

    They count by CLIP's doubt; and where CLIP agrees with them more often than it is sure, by more
    than chance, by how much of its doubt that takes away: such Gaussians know what CLIP knows.
    """
    sure = float(confidence.mean())
    doubt, chance = 1.0 - sure, 0.5 * math.sqrt(sure * (1.0 - sure) / len(confidence))
    borne_out = max(agree - sure - chance, 0.0) / max(doubt, 1e-6)
    by_doubt = math.pow(doubt / ENOUGH_DOUBT, DOUBT_POWER)
    return WEIGHT * min(1.0, by_doubt + BORNE_OUT * borne_out)


def _oversure(confidence: np.ndarray, agree: float) -> float:
    """0 to 1: how much surer CLIP is than the Gaussians bear out. A shifted CLIP does not know."""
    return min(max((float(confidence.mean()) - agree) / OVERSURE, 0.0), 1.0)


def _calibration(
    evidence: Evidence, scores: np.ndarray, statistics: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The temperature, and the accuracies to be expected under it, from the uniform sample.

    How often CLIP agrees with the Gaussians, which are no surer of its answers for its being sure,
    tells whether CLIP is too sure of itself. Where it agrees less often than it is sure, adapted
    answers are no surer than CLIP; where it agrees more often, they may be surer.
    """
    clip, scores = evidence.clip[:CALIBRATED_BY], scores[:CALIBRATED_BY]
    answers = clip.argmax(axis=1)
    agree = float((answers == (scores + statistics["unknown"]).argmax(axis=1)).mean())
    sure = float(evidence.drawn_confidence[:CALIBRATED_BY].mean())
    parts = (statistics[name] for name in ("evidence", "unknown", "weighing"))
    adapted = clip + weighed(np, scores, *parts)
    temperature = temperature_for(adapted, sure + LEEWAY * max(agree - sure, 0.0))
    chances = softmax(np, adapted / np.float32(temperature))
    expected = [chances[np.arange(len(answers)), answers].mean(), chances.max(axis=1).mean()]
    return {
        "temperature": np.array([temperature]),
        "expected": np.array(expected, np.float64),
    }


def _perplexity(answers: np.ndarray) -> float:
    """How many classes the answers are spread over, as if evenly."""
    share = np.unique(answers, return_counts=True)[1] / len(answers)
    return float(np.exp(-(share * np.log(share)).sum()))


def strength(xp: Any, best: Array, weighing: np.ndarray) -> Array:
    """s(f) from the score of the likeliest known class, max G(f)."""
    weight, spread, new, *_, typical = weighing.tolist()  # older states have one more quantile
    # By one nat at least: where scores differ by less, they tell nothing apart.
    strength = weight * _ramp(xp, best / max(new, 1.0))
    if spread != 1.0:
        strength = strength * spread ** _ramp(xp, (best - new) / max(typical - new, 1.0))
    return strength


def reference(xp: Any, best: Array, weighing: np.ndarray) -> Array:
    """What a known class must reach to gain on one that nothing is known of: max G(f), or more.

    An image that fits no known class as well as nearly all of the sample do may be of a class that
    has not come yet, so known ones lose. Not where CLIP is sure: there it is just an odd one.
    """
    weight, new = float(weighing[0]), float(weighing[2])
    return best + weight**2 * _positive(xp, new - best)


def _ramp(xp: Any, x: Array) -> Array:
    """x within 0 and 1."""
    return 1.0 - _positive(xp, 1.0 - _positive(xp, x))


def _positive(xp: Any, x: Array) -> Array:
    """x, and no less than 0."""
    if isinstance(x, float):
        return max(x, 0.0)
    if isinstance(x, np.ndarray | np.generic):  # the namespace's clip takes as long as a product
        return np.maximum(x, 0.0)
    return xp.clip(x, 0.0, None)


def weighed(xp: Any, scores: Array, evidence: Array, unknown: Array, weighing: np.ndarray) -> Array:
    """(n, C) scores of the Gaussians -> what is added to CLIP's logits; writes over the scores."""
    if isinstance(scores, np.ndarray) and len(scores) == 1:  # in plain numbers: streams live here
        best = float((scores + unknown).max())
    else:
        all_known = isinstance(unknown, np.ndarray) and not unknown.any()
        best = xp.max(scores if all_known else scores + unknown, axis=-1, keepdims=True)
    scores -= reference(xp, best, weighing)
    scores *= evidence
    scores *= strength(xp, best, weighing)
    return scores
