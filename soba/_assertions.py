"""Assertions that the contract checks share: states, samples, arrays up to rounding, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from soba.adapt.base import Adapter

ROUNDING = 1e-5  # of the size of the logits: what a float product may differ by


def assert_same_state(one: dict[str, Any], other: dict[str, Any], rounding: bool = False) -> None:
    """Two states are equal: to the bit, or up to the rounding of float products."""
    assert one["meta"] == other["meta"], f"{one['meta']} != {other['meta']}"
    assert one["arrays"].keys() == other["arrays"].keys()
    for name, array in one["arrays"].items():
        theirs = other["arrays"][name]
        if rounding and array.dtype.kind == "f":
            close(array, theirs, name, tolerance=1e-3)
        else:
            assert array.dtype == theirs.dtype and np.array_equal(array, theirs), f"{name} differs"


def assert_same_samples(one: Adapter, other: Adapter) -> None:
    """Two adapters keep the same samples and have counted the same ones."""
    mine, theirs = one.state()["arrays"], other.state()["arrays"]
    for name in mine:
        if name == "seen" or name.endswith((".ids", ".labels")):
            assert np.array_equal(mine[name], theirs[name]), f"{name} differs"


def close(actual: Any, expected: Any, what: str, tolerance: float = ROUNDING) -> None:
    """Two arrays agree up to rounding, as a share of the largest value that is expected."""
    actual, expected = np.asarray(host(actual), float), np.asarray(host(expected), float)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    size = max(float(np.abs(expected).max(initial=0.0)), 1e-30)
    gap = float(np.abs(actual - expected).max(initial=0.0))
    assert gap <= tolerance * size, f"{what}: off by {gap / size:.1e} of their size"


def raises(
    kinds: Any, call: Callable[..., Any], *args: Any, naming: str = "", **kwargs: Any
) -> None:
    """The call ends in one of these errors, which names what it is about."""
    try:
        call(*args, **kwargs)
    except kinds as error:
        assert naming in str(error), f"the error does not name {naming}: {error}"
        return
    raise AssertionError(f"no error where one of {kinds} was due")


def host(array: Any) -> np.ndarray:
    """An array of any library as numpy."""
    return np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
