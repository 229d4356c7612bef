"""Checks of hyper-parameters: each gives the value back, or says what is wrong with it."""

from __future__ import annotations

import math
import warnings

import numpy as np


def checked_scale(logit_scale: float) -> float:
    """`logit_scale`, if it can be CLIP's; its logarithm would make every answer a guess."""
    value = positive(logit_scale, "logit_scale")
    if value > 1e38:
        raise ValueError(f"logit_scale {logit_scale!r} is beyond float32")
    if value < 1.0:
        raise ValueError(
            f"logit_scale must be 1 at least, not {logit_scale!r}: OpenAI's models have 100"
        )
    if value < 8.0:
        warnings.warn(
            f"a logit scale of {value:g} leaves CLIP in doubt of everything; if it is the "
            f"logarithm that checkpoints store, give exp({value:g}) = {math.exp(value):.4g}",
            stacklevel=4,
        )
    return value


def positive(value: float, name: str) -> float:
    """`value` as a float, if it is a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{name} must be positive and finite, not {value!r}")
    return float(value)


def whole(value: int, name: str, least: int = 1) -> int:
    """`value` as an int, if it is a whole number and large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number, {least} at least, not {value!r}")
    return int(value)


def at_least_zero(value: float, name: str) -> float:
    """`value` as a float, if it is zero or a positive number."""
    return 0.0 if value == 0 and not isinstance(value, bool) else positive(value, name)


def one_of(value: str, known: tuple[str, ...], name: str) -> str:
    """`value`, if it is one of the known words."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return value
