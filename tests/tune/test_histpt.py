"""HisTPT: the banks against an example worked by hand, and what a sample does."""

import numpy as np
import pytest
import torch

from soba.testing import assert_same_state
from soba.tune._base import entropies
from soba.tune.histpt import Banks, HisTPT


def test_banks_by_hand():
    banks = Banks(capacity=3, hardest=2, momentum=0.9)

    def push(value, entropy):
        banks.push(np.full((1, 1), value, np.float32), entropy)

    push(1.0, 0.5)  # fills everything
    assert banks.local.ravel().tolist() == banks.hard.ravel().tolist() == [1, 1, 1]
    assert banks.overall.item() == 1
    push(2.0, 0.9)  # 1 leaves both banks; the hardest two are 2 (0.9) and a 1 (0.5)
    assert banks.local.ravel().tolist() == [2, 1, 1]
    assert banks.entropies.tolist() == [0.9, 0.5, 0.5]
    assert banks.hard.ravel().tolist() == [1.5, 1, 1]
    assert banks.overall.item() == pytest.approx(1)
    push(4.0, 0.1)
    assert banks.local.ravel().tolist() == [4, 2, 1]
    assert banks.hard.ravel().tolist() == [1.5, 1.5, 1]
    push(8.0, 0.7)  # the hardest are 2 (0.9) and 8 (0.7)
    assert banks.local.ravel().tolist() == [8, 4, 2]
    assert banks.hard.ravel().tolist() == [5, 1.5, 1.5]
    assert banks.overall.item() == pytest.approx(1)
    push(16.0, 0.2)  # 2 and 1.5 leave: 0.9 + 0.1 * 1.75
    assert banks.overall.item() == pytest.approx(1.075)
    assert banks.hard.ravel().tolist() == [12, 5, 1.5]  # of 8 (0.7) and 16 (0.2)


def test_prototypes_are_means_of_unit_length():
    banks = Banks(capacity=2, hardest=1, momentum=0.5)
    banks.push(np.array([[1.0, 0.0]], np.float32), 0.1)
    banks.push(np.array([[0.0, 1.0]], np.float32), 0.9)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(
        banks.prototypes(), [[[1, 0]], [[half, half]], [[half, half]]], atol=1e-6
    )


def test_the_surer_prototype_weighs_more(encoder, names, views):
    tuner = HisTPT(encoder, names)
    tuner.adapt(views[:3])
    image = torch.asarray(views[4, 0])
    logits = tuner._logits(image, torch.asarray(tuner.banks_.prototypes()))
    weights = torch.exp(-entropies(logits))
    expected = (weights[:, None] * logits).sum(dim=0) / weights.sum()
    torch.testing.assert_close(tuner.fused(image), expected)


def test_a_sample_moves_the_prompt_towards_its_pseudo_label(encoder, names, views):
    tuner = HisTPT(encoder, names, learning_rate=2e-4)
    before = tuner.predict_proba(views[0])  # of each view by itself
    tuner.adapt(views[:1])
    label = int(tuner.fused(torch.asarray(views[0, 0])).argmax())
    surest = np.argsort((before * np.log(before)).sum(axis=1))[-2:]  # a tenth of twenty
    after = tuner.predict_proba(views[0])
    assert np.log(after[surest, label]).mean() > np.log(before[surest, label]).mean()


def test_the_prompt_goes_on_and_banks_hold_what_was_scored_with(encoder, names, views):
    tuner = HisTPT(encoder, names, capacity=4, hardest=2)
    first = tuner._text.numpy()
    tuner.adapt(views[:1])
    second = tuner._text.numpy()
    assert np.abs(second - first).max() > 1e-4
    tuner.adapt(views[1:2])
    np.testing.assert_array_equal(tuner.banks_.local[0], second)
    np.testing.assert_array_equal(tuner.banks_.local[1], first)


def test_plain_features_will_do(encoder, names, views):
    tuner = HisTPT(encoder, names)
    assert tuner.adapt(views[:, 0]).shape == (6, 5)
    assert tuner.needs.startswith("features or views")
    assert tuner.provenance == "re-implementation from the paper"


def test_more_of_the_hardest_than_there_are_is_refused(encoder, names):
    with pytest.raises(ValueError, match="hardest must be 4 at most, the capacity, not 5"):
        HisTPT(encoder, names, capacity=4, hardest=5)
    HisTPT(encoder, names, capacity=4, hardest=4)


def test_other_classes_keep_the_prompt_and_start_new_banks(encoder, names, views, tmp_path):
    tuner = HisTPT(encoder, names)
    tuner.adapt(views[:3])
    turned = tuner.with_classes(names[::-1])
    np.testing.assert_allclose(
        turned.predict(views), tuner.predict(views)[:, ::-1], atol=1e-4, rtol=0
    )
    assert len(turned.banks_.local) == 0
    other = tuner.with_classes(["gnu", "elk"])
    assert torch.equal(other._context, tuner._context)
    other.save(tmp_path / "other")
    loaded = HisTPT.load(tmp_path / "other", encoder=encoder)
    np.testing.assert_array_equal(loaded.adapt(views), other.adapt(views))
    assert_same_state(loaded.state(), other.state())
    assert other.banks_.local.shape == (32, 2, 16)
    assert len(tuner.banks_.local[0]) == 5


@pytest.mark.parametrize("failing", [1, 2])
def test_a_step_that_fails_changes_nothing(encoder, names, views, monkeypatch, failing):
    tuner = HisTPT(encoder, names, steps=2)
    tuner.adapt(views[:2])
    before, text = tuner.state(), tuner._text
    expected = tuner.clone().adapt(views[2:])
    step, calls = torch.optim.AdamW.step, iter(range(1, 9))

    def fail(self, *args):
        if next(calls) == failing:
            raise MemoryError
        return step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", fail)
        with pytest.raises(MemoryError):
            tuner.adapt(views[2:])
    assert_same_state(tuner.state(), before)
    assert torch.equal(tuner._text, text)
    np.testing.assert_array_equal(tuner.adapt(views[2:]), expected)
