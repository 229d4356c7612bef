"""How much the adapted logits must be cooled so that they are no surer than CLIP's."""

from __future__ import annotations

import math

import numpy as np

HOTTEST = 16.0


def matching_temperature(clip: np.ndarray, adapted: np.ndarray, labels: np.ndarray) -> float:
    """The temperature, 1 or more, at which the adapted logits doubt the labels as CLIP's do.

    With CLIP's answers as labels, the adapted classifier then believes CLIP as much as CLIP does:
    it keeps CLIP's own calibration, doubts included.
    """
    at = np.arange(len(labels))

    def doubt(logits: np.ndarray, temperature: float) -> float:
        """log of the mean of 1 - the labels' probability, exact however sure."""
        with np.errstate(over="ignore"):
            odds = np.exp((logits - logits[at, labels][:, None]) / temperature)
            odds[at, labels] = 0.0
            against = odds.sum(axis=1)
        return math.log(
            max(float((1.0 / (1.0 + 1.0 / np.maximum(against, 1e-300))).mean()), 1e-300)
        )

    clip_doubt = doubt(clip, 1.0)

    def excess(sharpness: float) -> float:
        return clip_doubt - doubt(adapted, 1.0 / sharpness)

    # In 1/temperature, in which the log of a doubt is almost a straight line.
    low, high = 1.0 / HOTTEST, 1.0
    at_low, at_high = excess(low), excess(high)
    if at_high <= 0.0 or at_low >= 0.0:
        return 1.0 if at_high <= 0.0 else HOTTEST
    # Regula falsi (Illinois): exact in a few steps, so that rounding does not make it jump.
    last = 0
    for _ in range(40):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        at_middle = excess(middle)
        if abs(at_middle) < 1e-7:
            break
        if at_middle < 0.0:
            low, at_low = middle, at_middle
            at_high *= 0.5 if last < 0 else 1.0  # an end that stays twice counts for less
            last = -1
        else:
            high, at_high = middle, at_middle
            at_low *= 0.5 if last > 0 else 1.0
            last = 1
    return 1.0 / middle
