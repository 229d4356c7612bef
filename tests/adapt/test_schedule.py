import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soba.adapt._schedule import Schedule


@given(st.integers(1, 3000))
def test_tenths(n):
    expected = sorted({math.ceil(j * n / 10) for j in range(1, 11)})
    assert Schedule("tenths", classes=2, total=n).boundaries(2 * n) == expected


@given(st.integers(1, 2000), st.integers(1, 300), st.one_of(st.none(), st.integers(1, 100)))
def test_growth(classes, steps, max_gap):
    schedule = Schedule("growth", classes=classes, max_gap=max_gap)
    at = max(classes, 64)
    assert schedule.next_after(0) == schedule.next_after(at - 1) == at
    for _ in range(steps):
        step = math.ceil(at / 10)
        following = at + (step if max_gap is None else min(step, max_gap))
        assert schedule.next_after(at) == schedule.next_after(following - 1) == following
        at = following


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 700])
def test_every_m(count):
    assert Schedule(7, classes=2).next_after(count) == count // 7 * 7 + 7
