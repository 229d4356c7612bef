"""How much the adapted logits must be cooled so that their confidence is a given one."""

from __future__ import annotations

import numpy as np

HOTTEST = 16.0
_EXACT = 1e-6  # of the mean probability


def temperature_for(logits: np.ndarray, confidence: float) -> float:
    """The temperature, 1 or more, at which the mean largest probability is `confidence`.

    1 where it is no larger to begin with: logits are cooled, never sharpened.

    >>> logits = np.array([[4.0, 0.0], [0.0, 4.0]])
    >>> round(temperature_for(logits, 0.8), 3), temperature_for(logits, 0.99)
    (2.885, 1.0)
    """
    below = (logits - logits.max(axis=1, keepdims=True)).astype(np.float32, copy=False)
    room = np.empty_like(below)

    def excess(sharpness: float) -> float:
        np.multiply(below, np.float32(sharpness), out=room)
        np.exp(room, out=room)
        return float((1.0 / room.sum(axis=1)).mean(dtype=np.float64)) - confidence

    # In 1/temperature, in which confidence is almost a straight line.
    low, high = 1.0 / HOTTEST, 1.0
    at_high = excess(high)
    if at_high <= 0.0:
        return 1.0
    at_low = excess(low)
    if at_low >= 0.0:
        return HOTTEST
    # Regula falsi (Illinois): exact in a few steps, so that rounding does not make it jump.
    last = 0
    for _ in range(40):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        at_middle = excess(middle)
        if abs(at_middle) < _EXACT:
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
