"""Tip-Adapter-F; the contract of all adapters is checked in tests/adapt."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from soba import TipAdapter
from soba.testing import example_stream
from soba.tune.classes import map_support, match_classes
from soba.tune.tip_adapter_f import TipAdapterF

FEATURES, LABELS, TEXT = example_stream(n=90)


def fitted(**options):
    return TipAdapterF(TEXT, logit_scale=20.0, **options).fit(FEATURES, LABELS)


def test_training_lowers_the_loss_and_moves_the_keys():
    tuner = fitted()
    assert len(tuner.losses_) == 20 and tuner.losses_[-1] < tuner.losses_[0]
    plain = TipAdapter(TEXT, logit_scale=20.0).fit(FEATURES, LABELS)
    gap = np.abs(tuner._keys - plain._keys).max()
    assert 0 < gap < 20 * 1e-3 * 1.5  # as far as AdamW can go
    np.testing.assert_array_equal(tuner._votes, plain._votes)


def by_hand(views, labels, text, keys, of):
    """Mean cross-entropy of the given views under the cache, with the initial alpha and beta."""
    losses = []
    for sample, label, view in zip(views, labels, of, strict=True):
        row = sample[view]
        logits = 20.0 * text @ row
        for key, vote in zip(keys, labels, strict=True):
            logits[vote] += 1.17 * np.exp(-1.0 * (1.0 - key @ row))
        losses.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label])
    return np.mean(losses)


def test_the_loss_is_that_of_the_official_code():
    rows, labels = FEATURES[:20], LABELS[:20]
    labels = np.where(np.arange(20) < 6, np.arange(20), labels)  # every class
    tuner = TipAdapterF(TEXT, logit_scale=20.0, epochs=1, learning_rate=1e-9).fit(rows, labels)
    expected = by_hand(rows[:, None], labels, TEXT, rows, np.zeros(20, int))
    assert tuner.losses_ == pytest.approx([expected], rel=1e-4)


def test_every_epoch_draws_a_view_of_each_sample():
    """So a loss is a mix of those of both views, another one each time."""
    rng = np.random.default_rng(0)
    other = FEATURES + 1.0 * rng.normal(size=FEATURES.shape)
    views = np.stack([FEATURES, other], axis=1)
    views /= np.linalg.norm(views, axis=-1, keepdims=True)
    tuner = TipAdapterF(TEXT, logit_scale=20.0, epochs=8, learning_rate=1e-9).fit(views, LABELS)
    keys = TipAdapter(TEXT, logit_scale=20.0).fit(views, LABELS)._keys
    order = np.argsort(LABELS, kind="stable")  # of the keys
    ends = [
        by_hand(views[order], LABELS[order], TEXT, keys, np.full(len(order), view))
        for view in (0, 1)
    ]
    assert len(set(tuner.losses_)) == 8
    assert min(ends) < min(tuner.losses_) and max(tuner.losses_) < max(ends)


def test_steps_are_adamws_with_a_cosine_over_all_of_them(monkeypatch):
    rates, settings = [], set()
    step = torch.optim.AdamW.step

    def spied(self, *args, **options):
        [group] = self.param_groups
        rates.append(group["lr"])
        settings.add((group["eps"], group["weight_decay"], *group["betas"]))
        return step(self, *args, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", spied)
    tuner = fitted(epochs=3, batch_size=20)
    steps = 3 * 5  # ninety samples, the last ten a batch of their own
    expected = [1e-3 * (1 + np.cos(np.pi * k / steps)) / 2 for k in range(steps)]
    assert rates == pytest.approx(expected, rel=1e-5)
    assert settings == {(1e-4, 0.01, 0.9, 0.999)}
    constants = {"epochs": 20, "batch_size": 256, "learning_rate": 1e-3, "seed": 0}
    assert constants.items() <= TipAdapterF(TEXT).params.items()
    assert len(tuner.losses_) == 3


def test_seeds_repeat():
    small = {"batch_size": 16, "epochs": 2}
    one, same, other = (fitted(seed=seed, **small) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one._keys, same._keys)
    assert not np.array_equal(one._keys, other._keys)


def test_val_is_searched_and_views_are_joined():
    views = np.repeat(FEATURES[:, None], 2, axis=1)
    tuner = TipAdapterF(TEXT, logit_scale=20.0, epochs=2)
    tuner.fit(views, LABELS, val=(views, LABELS))
    assert tuner.tuned_on_ == "validation"
    assert tuner.alpha_ != 1.17 or tuner.beta_ != 1.0


def test_keys_begin_as_tip_adapters_and_train_on_unit_views():
    """Long augmentations weigh more in the keys; what is drawn to train on is normalised."""
    rng = np.random.default_rng(0)
    views = FEATURES[:, None] + 0.3 * rng.normal(size=(len(FEATURES), 3, FEATURES.shape[1]))
    views /= np.linalg.norm(views, axis=-1, keepdims=True)
    long = views * rng.uniform(1, 9, size=(len(FEATURES), 3, 1))
    options = {"logit_scale": 20.0, "epochs": 1, "learning_rate": 1e-9}
    tuner = TipAdapterF(TEXT, **options).fit(long, LABELS)
    plain = TipAdapter(TEXT, logit_scale=20.0).fit(long, LABELS)
    np.testing.assert_allclose(tuner._keys, plain._keys, atol=1e-6)
    of_unit = TipAdapterF(TEXT, **options).fit(views, LABELS)
    assert np.abs(of_unit._keys - tuner._keys).max() > 0.01
    # The keys differ a little, the samples not at all: nine times longer ones would cost far more.
    assert tuner.losses_[0] == pytest.approx(of_unit.losses_[0], rel=0.05)


def test_restricted_to_some_classes():
    """As if the columns of the whole were picked."""
    tuner = fitted()
    classes = [4, 0, 2]
    np.testing.assert_allclose(
        tuner.restricted(classes).logits(FEATURES), tuner.logits(FEATURES)[:, classes], atol=1e-4
    )
    assert tuner.restricted(classes).tuned_on_ == tuner.tuned_on_


def test_search_is_what_fit_does_with_val():
    val = FEATURES[::2], LABELS[::2]
    at_once = TipAdapterF(TEXT, logit_scale=20.0, epochs=2).fit(FEATURES, LABELS, val=val)
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
assert tip.logits(numpy.ones((2, 24))).shape == (2, 6)
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
