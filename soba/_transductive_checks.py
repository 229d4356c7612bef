"""What every method must do that sees a whole set at once; part of the contract of adapters."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from soba._assertions import assert_same_state, close, host, raises
from soba._examples import Case

Check = Callable[[Case], None]


def of_streams(check: Check) -> Check:
    """A check that a method without a stream is spared."""

    @functools.wraps(check)
    def checked(case: Case) -> None:
        if case.cls.card.family != "transductive":
            check(case)

    return checked


def of_sets(check: Check) -> Check:
    """A check of `transduce`, where a method has it."""

    @functools.wraps(check)
    def checked(case: Case) -> None:
        if hasattr(case.cls, "transduce"):
            check(case)

    return checked


def check_family(case: Case) -> None:
    """Who sees whole sets only has `transduce`, and refuses the verbs of streams by its name."""
    if case.cls.card.family != "transductive":
        return
    adapter = case.make()
    assert hasattr(adapter, "transduce"), "a transductive method has transduce"
    for verb in (adapter.adapt, adapter.logits, adapter.probabilities, adapter.predict):
        raises(TypeError, verb, case.stream[:3], naming="transduce")
    raises(TypeError, adapter.top_k, case.stream[:3], 2, naming="transduce")
    assert type(adapter)(case.words(case.text), **adapter.params).params == adapter.params


@of_sets
def check_transduce_shapes(case: Case) -> None:
    """(n, d) -> (n, C) of the same kind, a set of one or of none too; `out` is written into."""
    adapter, stream = case.make(), case.stream
    for n in (0, 1, 2, 5, 240):
        logits = adapter.transduce(stream[:n])
        assert type(logits) is type(stream), f"{type(stream)} in, {type(logits)} out"
        assert tuple(logits.shape) == (n, 6)
        assert np.isfinite(host(logits)).all()
    out = case.array(np.full((240, 6), np.nan))
    assert adapter.transduce(stream, out=out) is out
    # The answers themselves, in the digits of `out`.
    close(host(out), host(logits), "out", tolerance=1e-3 if case.dtype == "float16" else 1e-5)


@of_sets
def check_transduce_is_pure(case: Case) -> None:
    """Neither the adapter nor the caller's array is changed, and the same set has the same bits."""
    adapter, stream = case.make(), case.stream
    if case.cls.card.family != "transductive":
        adapter.adapt(stream[:100])
    before, given = adapter.state(), host(stream).copy()
    first, second = host(adapter.transduce(stream)), host(adapter.transduce(stream))
    assert np.array_equal(first, second)
    assert_same_state(adapter.state(), before)
    assert np.array_equal(host(stream), given)


@of_sets
def check_transduce_order(case: Case) -> None:
    """Rows in another order have the same answers, in that order."""
    order = np.random.default_rng(0).permutation(240)
    expected = host(case.make().transduce(case.stream))
    shuffled = host(case.make().transduce(case.array(case.features[order])))
    close(shuffled, expected[order], "logits of a set in another order", tolerance=1e-4)
    assert np.array_equal(shuffled.argmax(axis=1), expected[order].argmax(axis=1))


@of_sets
def check_transduce_bad_input(case: Case) -> None:
    """What is wrong raises ValueError or TypeError; nothing is written, nothing is changed."""
    adapter, width = case.make(), case.text.shape[1]
    before, good = adapter.state(), case.features[:4]

    def spoiled(value: float) -> np.ndarray:
        rows = good.copy()
        rows[1] = value
        return rows

    for bad in (
        case.array(good[..., :5].copy()),
        *(case.array(spoiled(value)) for value in (np.nan, np.inf, 0.0)),
        case.convert(np.ones((3, width), int)),
        np.full((3, width), None),
        case.array(good[0]),  # not a set
    ):
        raises((ValueError, TypeError), adapter.transduce, bad)
    for rounds in (-1, 1.5, True):
        raises((ValueError, TypeError), adapter.transduce, case.array(good), rounds=rounds)
    for out in (
        case.array(np.zeros((3, 6))),
        case.array(np.zeros((4, 5))),
        case.convert(np.zeros((4, 6), int)),
        [[0.0] * 6] * 4,
    ):
        raises((ValueError, TypeError), adapter.transduce, case.array(good), out=out)
    assert_same_state(adapter.state(), before)


@of_sets
def check_transduce_files(case: Case) -> None:
    """Saved, loaded and copied, it answers as before."""
    adapter, cls = case.make(), cast(Any, case.cls)
    expected = host(adapter.transduce(case.stream))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        adapter.save(path)
        for twin in (cls.load(path), adapter.copy()):
            assert np.array_equal(host(twin.transduce(case.stream)), expected)
            assert_same_state(twin.state(), adapter.state())
        path.write_bytes(path.read_bytes()[:-9])
        raises(ValueError, cls.load, path, naming="state.safetensors")


TRANSDUCTIVE_CHECKS: tuple[Check, ...] = (
    check_family,
    check_transduce_shapes,
    check_transduce_is_pure,
    check_transduce_order,
    check_transduce_bad_input,
    check_transduce_files,
)
