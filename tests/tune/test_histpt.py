"""HisTPT: the banks against an example worked by hand, and what a sample does."""

import numpy as np
import pytest
import torch

from soba.testing import assert_same_state
from soba.tune.histpt import Banks, HisTPT


def test_banks_by_hand():
    banks = Banks(capacity=3, hardest=2, momentum=0.9)

    def push(value, entropy):
        banks.push(np.full((1, 1), value, np.float32), entropy)

    push(1.0, 0.5)  # fills everything
    assert banks.local.ravel().tolist() == banks.hard.ravel().tolist() == [1, 1, 1]
    assert banks.overall.item() == 1
    push(2.0, 0.9)  # the hardest two are 2 (0.9) and a 1 (0.5)
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
    # The slow mean is taken last: the oldest are now 2 and 1.5, so 0.9 + 0.1 * 1.75.
    assert banks.overall.item() == pytest.approx(1.075)
    push(16.0, 0.2)
    assert banks.local.ravel().tolist() == [16, 8, 4]
    assert banks.hard.ravel().tolist() == [12, 5, 1.5]  # of 8 (0.7) and 16 (0.2)
    assert banks.overall.item() == pytest.approx(0.9 * 1.075 + 0.1 * (4 + 1.5) / 2)


def test_prototypes_are_means_of_unit_length():
    banks = Banks(capacity=2, hardest=1, momentum=0.5)
    banks.push(np.array([[1.0, 0.0]], np.float32), 0.1)
    banks.push(np.array([[0.0, 1.0]], np.float32), 0.9)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(
        banks.prototypes(), [[[1, 0]], [[half, half]], [[half, half]]], atol=1e-6
    )


def entropy(logits):
    """The obvious way."""
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    return -(p * np.log(p)).sum(axis=-1)


def test_the_surer_prototype_weighs_more(encoder, names):
    """One prototype is sure of class 0; two lean to class 1 and are not sure at all."""
    tuner = HisTPT(encoder, names, capacity=1, hardest=1)
    cosines = np.array(
        [[0.3, 0, 0, 0, 0], [0, 0.1, 0.08, 0.08, 0.08], [0, 0.11, 0.1, 0.1, 0.1]], np.float32
    )
    rows = np.zeros((3, 5, 16), np.float32)  # unit, and of these cosines with the first axis
    rows[..., 0], rows[..., 1] = cosines, np.sqrt(1 - cosines**2)
    banks = Banks(capacity=1, hardest=1, momentum=0.99)
    banks.overall, banks.local, banks.hard = rows[0], rows[1:2], rows[2:]
    fused = tuner.fused(torch.eye(16)[0], banks).numpy()
    logits = tuner.logit_scale * cosines.astype(np.float64)
    doubt = entropy(logits)
    assert doubt[0] < 0.6 < 1.5 < doubt[1:].min()
    weights = np.exp(-doubt) / np.exp(-doubt).sum()
    np.testing.assert_allclose(fused, weights @ logits, rtol=1e-4)
    assert weights[0] > 0.5 and fused.argmax() == 0


def test_constants_are_the_public_codes(encoder, names):
    assert HisTPT(encoder, names).params == {
        "capacity": 32,
        "hardest": 16,
        "momentum": 0.99,
        "steps": 1,
        "learning_rate": 1e-5,
        "weight_decay": 0.05,
        "clip": 5.0,
        "selection": 0.1,
        "total": None,
    }


def test_samples_take_steps_of_adamw_with_a_clipped_gradient(encoder, names, views):
    """Three samples by hand, two steps each: moments go on, and long gradients are cut to `clip`.

    Gradients here are of norms from 27 to 160, so without the cut the later steps would differ.
    """
    rate, decay, most = 1e-4, 0.5, 30.0
    tuner = HisTPT(
        encoder, names, steps=2, learning_rate=rate, weight_decay=decay, clip=most, momentum=0.9
    )
    context = tuner._context.detach().clone()
    first, second = torch.zeros_like(context), torch.zeros_like(context)
    banks, norms, step = Banks(capacity=32, hardest=16, momentum=0.9), [], 0
    for sample in torch.asarray(views[:3]):
        text = tuner._prompts.features_of_each(context)
        logits = (tuner.logit_scale * sample @ text.T).numpy()
        rows = np.argsort(entropy(logits))[:2]  # a tenth of twenty
        banks.push(text.numpy(), entropy(logits[rows]).mean())
        label = int(tuner.fused(sample[0], banks).argmax())
        for _ in range(2):
            step += 1
            leaf = context.clone().requires_grad_()
            tuned = tuner.logit_scale * sample[rows] @ tuner._prompts.features_of_each(leaf).T
            loss = -torch.log_softmax(tuned, dim=1)[:, label].mean()
            (gradient,) = torch.autograd.grad(loss, leaf)
            norms.append(float(gradient.norm()))
            gradient = gradient * min(1.0, most / norms[-1])
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            mean, square = first / (1 - 0.9**step), second / (1 - 0.999**step)
            context = context * (1 - rate * decay) - rate * mean / (square.sqrt() + 1e-8)
    assert min(norms) < most < max(norms)
    tuner.adapt(views[:3])
    sure = first.abs() > 1e-3  # elsewhere the sign of the step is rounding
    assert sure.float().mean() > 0.5
    torch.testing.assert_close(tuner._context.detach()[sure], context[sure], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(tuner.banks_.entropies, banks.entropies, rtol=1e-3)
    np.testing.assert_allclose(tuner.banks_.overall, banks.overall, atol=1e-4)


def test_weight_decay_is_applied(encoder, names, views):
    """It is too small to be seen at the usual rate."""
    contexts = []
    for decay in (0.0, 1000.0):
        tuner = HisTPT(encoder, names, weight_decay=decay)
        before = tuner._context.detach().clone()
        tuner.adapt(views[:1])
        contexts.append(tuner._context.detach())
    torch.testing.assert_close(
        contexts[0] - contexts[1], 1e-5 * 1000 * before, rtol=1e-2, atol=1e-7
    )


def test_the_banks_entropy_is_that_of_the_augmented_views(encoder, names, views):
    tuner = HisTPT(encoder, names)
    tuner.adapt(views[:1])
    doubt = entropy(tuner.logit_scale * views[0] @ tuner.text_features.T)
    expected = np.sort(doubt)[:2].mean()
    assert abs(expected - doubt[0]) > 0.01  # not the image's own
    np.testing.assert_allclose(tuner.banks_.entropies, expected, rtol=1e-4)


def test_each_class_has_a_context_of_its_own(encoder, names, views):
    tuner = HisTPT(encoder, names)
    before = tuner._context.detach().clone()
    assert before.shape[0] == len(names)
    tuner.adapt(views[:1])
    moves = (tuner._context.detach() - before).flatten(1)
    assert all(move.abs().max() > 5e-6 for move in moves)
    label = int(tuner.fused(torch.asarray(views[0, 0])).argmax())
    other = (label + 1) % len(names)
    assert torch.nn.functional.cosine_similarity(moves[label], moves[other], dim=0) < 0.9
    # The text of a class depends on its context alone.
    changed = tuner._context.detach().clone()
    changed[label] += 0.01
    text, moved = tuner._prompts.features_of_each(before), tuner._prompts.features_of_each(changed)
    assert (moved[label] - text[label]).abs().max() > 1e-3
    unmoved = tuner._prompts.features_of_each(tuner._context.detach())
    for k in set(range(len(names))) - {label}:
        torch.testing.assert_close(moved[k], unmoved[k])


def test_the_rate_falls_near_the_end_of_a_stream_of_known_length(encoder, names, views):
    """Rates behind each of twenty samples; a known sample counts once, a copy goes on."""
    tuner = HisTPT(encoder, names, total=20)
    samples = np.tile(views, (4, 1, 1))[:20]
    rates = []
    for number, sample in enumerate(samples):
        tuner.adapt(sample[None], ids=[number])
        tuner.adapt(sample[None], ids=[number])
        rates.append(tuner._optimiser.param_groups[0]["lr"])
        if number == 10:
            tuner = tuner.copy()
    assert rates == pytest.approx([1e-5] * 17 + [1e-6] * 2 + [1e-7])
    endless = HisTPT(encoder, names)
    endless.adapt(samples)
    assert endless._optimiser.param_groups[0]["lr"] == 1e-5


def test_a_sample_moves_the_prompt_towards_its_pseudo_label(encoder, names, views):
    tuner = HisTPT(encoder, names, learning_rate=2e-4)
    before = tuner.probabilities(views[0])  # of each view by itself
    tuner.adapt(views[:1])
    label = int(tuner.fused(torch.asarray(views[0, 0])).argmax())
    surest = np.argsort((before * np.log(before)).sum(axis=1))[-2:]  # a tenth of twenty
    after = tuner.probabilities(views[0])
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


def test_the_image_is_scored_with_the_prompt_it_has_tuned(encoder, names, views):
    tuner = HisTPT(encoder, names, learning_rate=2e-4)
    for sample in views[:3]:
        logits = tuner.adapt(sample[None])
        np.testing.assert_allclose(logits, tuner.logits(sample[:1]), rtol=1e-5, atol=1e-5)


def test_the_pseudo_label_comes_from_banks_that_hold_the_present_text(
    encoder, names, views, monkeypatch
):
    """Banks of one entry, and a slow mean that forgets: all three are the text before the step."""
    tuner = HisTPT(encoder, names, capacity=1, hardest=1, momentum=1e-6, learning_rate=5e-3)
    loss, used = torch.nn.functional.cross_entropy, []
    monkeypatch.setattr(
        torch.nn.functional,
        "cross_entropy",
        lambda logits, labels: used.append(int(labels[0])) or loss(logits, labels),
    )
    expected, stale = [], []
    for sample in views:
        expected.append(int(tuner.logits(sample[0]).argmax()))
        if len(tuner.banks_.local):
            stale.append(int(tuner.fused(torch.asarray(sample[0])).argmax()))
        tuner.adapt(sample[None])
    assert used == expected
    assert stale != expected[1:]  # the banks before the push would have said otherwise


def test_plain_features_will_do(encoder, names, views):
    tuner = HisTPT(encoder, names)
    assert tuner.adapt(views[:, 0]).shape == (6, 5)
    assert tuner.card.needs == {"features", "gradients"}
    assert tuner.card.provenance == "re-implementation from the paper"


def test_more_of_the_hardest_than_there_are_is_refused(encoder, names):
    with pytest.raises(ValueError, match="hardest must be 4 at most, the capacity, not 5"):
        HisTPT(encoder, names, capacity=4, hardest=5)
    HisTPT(encoder, names, capacity=4, hardest=4)


def test_other_classes_keep_the_prompt_and_start_new_banks(encoder, names, views, tmp_path):
    tuner = HisTPT(encoder, names, learning_rate=2e-4)
    tuner.adapt(views[:3])
    turned = tuner.with_classes(names[::-1])
    np.testing.assert_allclose(
        turned.logits(views), tuner.logits(views)[:, ::-1], atol=1e-4, rtol=0
    )
    assert len(turned.banks_.local) == 0
    for name in ("context", "exp_avg", "exp_avg_sq"):
        kept = tuner.state()["arrays"][name][::-1]
        np.testing.assert_array_equal(turned.state()["arrays"][name], kept)
    other = tuner.with_classes(["gnu", names[1]])
    assert torch.equal(other._context[1], tuner._context[1])  # a class that stays
    assert torch.equal(other._context[0], tuner._prompts.initial)  # a new one
    assert (other.state()["arrays"]["exp_avg"][0] == 0).all()
    assert other.state()["meta"]["step"] == 3
    other.save(tmp_path / "other")
    loaded = HisTPT.load(tmp_path / "other", encoder=encoder)
    np.testing.assert_array_equal(loaded.adapt(views), other.adapt(views))
    assert_same_state(loaded.state(), other.state())
    assert other.banks_.local.shape == (32, 2, 16)
    assert len(tuner.banks_.local[0]) == 5


def test_a_state_with_contexts_of_another_shape_is_refused(encoder, names, views, tmp_path):
    """As saved before each class had a context of its own."""
    tuner = HisTPT(encoder, names)
    state = tuner.state()
    state["arrays"]["context"] = state["arrays"]["context"][0]
    with pytest.raises(ValueError, match=r"context of shape \(12, 24\), where \(5, 12, 24\)"):
        HisTPT.from_state(state, encoder)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_step_that_fails_changes_nothing(encoder, names, views, monkeypatch, failing):
    tuner = HisTPT(encoder, names, steps=2)
    tuner.adapt(views[:2])
    before, text = tuner.state(), tuner._text
    expected = tuner.copy().adapt(views[2:])
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
