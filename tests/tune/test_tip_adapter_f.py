"""Tip-Adapter-F; the contract of all adapters is checked in tests/adapt."""

import subprocess
import sys

import numpy as np
import pytest

from soba import TipAdapter
from soba.testing import example_stream
from soba.tune.classes import map_support, match_classes
from soba.tune.tip_adapter_f import TipAdapterF

FEATURES, LABELS, TEXT = example_stream(n=90)


def fitted(**options):
    return TipAdapterF(TEXT, scale=20.0, **options).fit(FEATURES, LABELS)


def test_training_lowers_the_loss_and_moves_the_keys():
    tuner = fitted()
    assert len(tuner.losses_) == 20 and tuner.losses_[-1] < tuner.losses_[0]
    plain = TipAdapter(TEXT, scale=20.0).fit(FEATURES, LABELS)
    gap = np.abs(tuner._keys - plain._keys).max()
    assert 0 < gap < 20 * 1e-3 * 1.5  # as far as AdamW can go
    np.testing.assert_array_equal(tuner._votes, plain._votes)


def test_seeds_repeat():
    small = {"batch_size": 16, "epochs": 2}
    one, same, other = (fitted(seed=seed, **small) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one._keys, same._keys)
    assert not np.array_equal(one._keys, other._keys)


def test_val_is_searched_and_views_are_joined():
    views = np.repeat(FEATURES[:, None], 2, axis=1)
    tuner = TipAdapterF(TEXT, scale=20.0, epochs=2)
    tuner.fit(views, LABELS, val=(views, LABELS))
    assert tuner.tuned_on_ == "validation"
    assert tuner.alpha_ != 1.17 or tuner.beta_ != 1.0


def test_restricted_to_some_classes():
    """As if the columns of the whole were picked."""
    tuner = fitted()
    chosen = [4, 0, 2]
    np.testing.assert_allclose(
        tuner.restricted(chosen).predict(FEATURES), tuner.predict(FEATURES)[:, chosen], atol=1e-4
    )
    assert tuner.restricted(chosen).tuned_on_ == tuner.tuned_on_


def test_search_is_what_fit_does_with_val():
    val = FEATURES[::2], LABELS[::2]
    at_once = TipAdapterF(TEXT, scale=20.0, epochs=2).fit(FEATURES, LABELS, val=val)
    later = fitted(epochs=2)
    keys = later._keys.copy()
    later.search(*val)
    assert (later.alpha_, later.beta_) == (at_once.alpha_, at_once.beta_)
    assert later.tuned_on_ == "validation"
    np.testing.assert_array_equal(later._keys, keys)
    with pytest.raises(ValueError, match="call fit first"):
        TipAdapterF(TEXT).search(*val)


def test_scoring_needs_no_torch(tmp_path):
    path = tmp_path / "tip.safetensors"
    fitted(epochs=1).save(path)
    code = f"""
import sys, numpy, soba
class NoTorch:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoTorch())
tip = soba.load({str(path)!r})
assert tip.predict(numpy.ones((2, 24))).shape == (2, 6)
tip.fit(numpy.eye(6, 24), range(6))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'soba-tta[torch]'" in run.stderr.splitlines()[-1]


def test_classes_by_name():
    known = ["great white shark", "missile", "tench", "missile"]
    assert match_classes(["tench", "Great_White_Shark"], known).tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"1 classes \('gnu'\) are not among the 4 known"):
        match_classes(["tench", "gnu"], known)
    with pytest.raises(ValueError, match="give unique keys"):
        match_classes(["missile"], known)
    rows, labels = map_support(np.array([0, 1, 2, 2]), known, ["tench", "great white shark"])
    assert rows.tolist() == [0, 2, 3] and labels.tolist() == [1, 0, 0]
