import numpy as np
import pytest

from soba.datasets import ImageSet, few_shot


@pytest.fixture
def whole():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [20, 3, 9]))
    keys = tuple(f"{label}/{i}.png" for i, label in enumerate(labels))
    return ImageSet("set", ("a", "b", "c"), keys, labels)


def test_each_class_has_its_shots_or_all_it_has(whole):
    few = few_shot(whole, 4, seed=1)
    assert few.labels.tolist() == [0] * 4 + [1] * 3 + [2] * 4
    assert len(set(few.keys)) == len(few)
    assert all(key[0] == str(label) for key, label in zip(few.keys, few.labels, strict=True))
    assert few.class_names == whole.class_names


def test_seeds_decide_and_fewer_shots_are_the_beginning_of_more(whole):
    assert few_shot(whole, 4, seed=1).keys == few_shot(whole, 4, seed=1).keys
    assert few_shot(whole, 4, seed=1).keys != few_shot(whole, 4, seed=2).keys
    for shots in (1, 2, 4):
        assert set(few_shot(whole, shots, seed=1).keys) <= set(few_shot(whole, 8, seed=1).keys)


def test_a_class_keeps_its_sample_when_others_change(whole):
    rest = np.flatnonzero(whole.labels != 0)
    part = ImageSet(
        "part", whole.class_names, tuple(whole.keys[i] for i in rest), whole.labels[rest]
    )
    assert few_shot(part, 4, seed=1).keys == few_shot(whole, 4, seed=1).keys[4:]


def test_refusals(whole):
    with pytest.raises(ValueError, match="shots must be at least 1, not 0"):
        few_shot(whole, 0, seed=1)
    with pytest.raises(ValueError, match="seed must not be negative"):
        few_shot(whole, 1, seed=-1)
    with pytest.raises(ValueError, match="set: has no labels"):
        few_shot(ImageSet("set", ("a",), ("x.png",)), 1, seed=1)
