"""CoOp and CoCoOp: they learn, they transfer, they say what is missing."""

import itertools

import numpy as np
import pytest
import torch
from rounding import assert_same_logits

from soba.adapt.few_shot import NotFittedError
from soba.adapt.zero_shot import ZeroShot
from soba.tune._training import rate, train
from soba.tune.cocoop import CoCoOp
from soba.tune.coop import CoOp

# Embeddings of a random model are small, so that steps of 2e-3 on them alone would overshoot.
FAST = {"epochs": 8, "learning_rate": 2e-4}


@pytest.mark.parametrize(("cls", "learning_rate"), [(CoOp, 2e-4), (CoCoOp, 2e-3)])
@pytest.mark.parametrize("context", [None, 3])
def test_the_loss_falls(cls, learning_rate, context, encoder, names, support):
    tuner = cls(
        encoder, names, context=context, batch_size=5, epochs=8, learning_rate=learning_rate
    )
    features, labels = support
    tuner.fit(features, labels)
    assert len(tuner.losses_) == 8
    chances = tuner.probabilities(features)[np.arange(len(labels)), labels]
    assert -np.log(chances).mean() < tuner.losses_[-1] * 1.05 < tuner.losses_[0]


def test_coop_beats_the_words_it_began_with(encoder, names, support):
    features, labels = support
    tuner = CoOp(encoder, names, batch_size=5, epochs=8, learning_rate=2e-4).fit(*support)
    zero_shot = (features @ tuner.text_features.T).argmax(axis=1)
    assert (tuner.logits(features).argmax(axis=1) == labels).mean() > (zero_shot == labels).mean()


@pytest.mark.parametrize("cls", [CoOp, CoCoOp])
def test_seeds(cls, encoder, names, support):
    def fitted(seed):
        return cls(encoder, names, seed=seed, batch_size=5, context=2, epochs=2).fit(*support)

    np.testing.assert_array_equal(fitted(3).logits(support[0]), fitted(3).logits(support[0]))
    assert not np.array_equal(fitted(3).logits(support[0]), fitted(4).logits(support[0]))


@pytest.mark.parametrize("cls", [CoOp, CoCoOp])
def test_transfer_keeps_what_was_learned(cls, encoder, names, support):
    tuner = cls(encoder, names, batch_size=5, **FAST).fit(*support)
    same = tuner.with_classes(names[::-1])
    np.testing.assert_allclose(
        same.logits(support[0]), tuner.logits(support[0])[:, ::-1], atol=1e-4
    )
    other = tuner.with_classes(["gnu", "elk", "yak"])
    assert other.logits(support[0]).shape == (20, 3)
    assert other.tuned_on_ == "given"


def test_cocoop_is_one_text_for_each_image(encoder, names, support):
    """Against one image at a time, through the parts."""
    tuner = CoCoOp(encoder, names, **FAST).fit(*support)
    all_logits = tuner.logits(support[0])
    learned = tuner._learned
    for row, logits in zip(torch.asarray(support[0]), all_logits, strict=True):
        hidden = torch.relu(learned["weight_in"] @ row + learned["bias_in"])
        shift = learned["weight_out"] @ hidden + learned["bias_out"]
        text = tuner._prompts.features(learned["context"] + shift)
        np.testing.assert_allclose(logits, (tuner.logit_scale * text @ row).numpy(), atol=1e-4)


def test_views_are_drawn_from(encoder, names, support):
    features, labels = support
    views = np.repeat(features[:, None], 3, axis=1)
    one = CoOp(encoder, names, epochs=2).fit(views, labels)
    assert len(one.losses_) == 2
    varied = views + 0.1 * np.random.default_rng(0).normal(size=views.shape).astype(np.float32)
    other = CoOp(encoder, names, epochs=2).fit(varied, labels)
    assert one.losses_ != other.losses_


def test_views_are_trained_on_as_unit_features(encoder, names, support):
    features, labels = support
    views = np.repeat(features[:, None], 3, axis=1)
    lengths = np.array([1, 4, 9], np.float32)[:, None]
    one, other = (CoOp(encoder, names, epochs=2).fit(x, labels) for x in (views, views * lengths))
    np.testing.assert_allclose(one.losses_, other.losses_, rtol=1e-4)


@pytest.mark.parametrize(
    ("samples", "batches"), [(20, [8, 8]), (16, [8, 8]), (5, [5])], ids=["rest", "whole", "few"]
)
def test_an_incomplete_batch_is_dropped_unless_it_is_the_only_one(samples, batches):
    """As Dassl, CoOp's code base, has it."""
    weight = torch.zeros(3, 2, requires_grad=True)
    sizes, seen = [], set()

    def logits_of(batch):
        sizes.append(len(batch))
        seen.update(batch[:, 0].tolist())
        return batch[:, :2] @ weight.T

    x = np.stack([np.arange(samples), np.ones(samples)], axis=1).astype(np.float32)
    options = {"epochs": 6, "batch_size": 8, "learning_rate": 1e-9, "warm_up": 0, "seed": 0}
    losses = train([weight], logits_of, x, np.arange(samples) % 3, **options)
    assert sizes == 6 * batches
    assert len(seen) == samples  # another rest each time
    np.testing.assert_allclose(losses, np.log(3), rtol=1e-4)  # a mean over what was trained on


@pytest.mark.parametrize("cls", [CoOp, CoCoOp])
def test_of_views_the_image_is_scored_as_zero_shot_does(cls, encoder, names, support, views):
    tuner = cls(encoder, names, batch_size=5, epochs=2).fit(*support)
    for kind in (np.asarray, torch.asarray):
        assert_same_logits(tuner.logits(kind(views)), tuner.logits(kind(views[:, 0])))
    clip = ZeroShot(tuner.text_features, logit_scale=tuner.logit_scale)
    assert_same_logits(clip.logits(views), clip.logits(views[:, 0]))


def test_what_is_missing_is_said(encoder, names, support, views):
    features, labels = support
    with pytest.raises(NotFittedError, match="coop needs labelled samples"):
        CoOp(encoder, names).logits(features)
    with pytest.raises(NotFittedError, match="cocoop needs labelled samples"):
        CoCoOp(encoder, names).adapt(views)
    with pytest.raises(ValueError, match="no labelled samples of 1 classes: 2"):
        CoOp(encoder, names).fit(features[labels != 2], labels[labels != 2])
    with pytest.raises(ValueError, match="labels out of range"):
        CoOp(encoder, names[:4]).fit(features, labels)
    fitted = CoOp(encoder, names, epochs=1).fit(features, labels)
    with pytest.raises(NotFittedError):
        fitted.reset().logits(features)


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_training_is_sgd_with_momentum_weight_decay_and_the_rate_of_each_epoch():
    """A linear model, replayed in numpy on the batches it was given."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)).astype(np.float32), rng.integers(3, size=12)
    x[:, 0] = np.arange(12)  # tells the samples apart
    start = (3.0 * rng.normal(size=(3, 4))).astype(np.float32)
    weight, batches = torch.tensor(start, requires_grad=True), []

    def logits_of(batch):
        batches.append(batch[:, 0].int().numpy())
        return batch @ weight.T

    options = {"epochs": 5, "batch_size": 4, "learning_rate": 0.05, "warm_up": 1, "seed": 0}
    train([weight], logits_of, x, y, **options)
    expected, velocity, steps = start.astype(np.float64), np.zeros((3, 4)), iter(batches)
    for epoch in range(5):
        # By the definition: 1e-5 while warming up, then half a cosine from 0.05 over five epochs.
        lr = 1e-5 if epoch == 0 else 0.05 * (1 + np.cos(np.pi * (epoch - 1) / 5)) / 2
        for _ in range(3):
            rows = next(steps)
            error = softmax(x[rows] @ expected.T) - np.eye(3)[y[rows]]
            velocity = 0.9 * velocity + error.T @ x[rows] / 4 + 5e-4 * expected
            expected = expected - lr * velocity
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
    again = []
    other = torch.tensor(start, requires_grad=True)
    train(
        [other],
        lambda batch: again.append(batch[:, 0].int().tolist()) or batch @ other.T,
        x,
        y,
        **options | {"seed": 1},
    )
    assert again != [rows.tolist() for rows in batches]  # a seed is an order


def test_every_epoch_draws_one_view_of_each_sample():
    samples, views = np.meshgrid(np.arange(16), np.arange(4), indexing="ij")
    x = np.stack([samples, views], axis=-1).astype(np.float32)  # (16, 4, 2)
    weight, drawn = torch.zeros(3, 2, requires_grad=True), []

    def logits_of(batch):
        drawn.append(batch.int().numpy())
        return batch @ weight.T

    options = {"epochs": 20, "batch_size": 16, "learning_rate": 1e-9, "warm_up": 0, "seed": 0}
    train([weight], logits_of, x, np.arange(16) % 3, **options)
    assert all(sorted(epoch[:, 0].tolist()) == list(range(16)) for epoch in drawn)
    seen = np.zeros((16, 4), int)
    for sample, view in np.concatenate(drawn):
        seen[sample, view] += 1
    assert (seen > 0).mean() > 0.9 and seen.sum(axis=0).min() > 0.7 * 20 * 16 / 4


def test_constants_are_the_official_codes(encoder, names):
    common = {"context": None, "learning_rate": 2e-3, "warm_up": 1, "seed": 0}
    assert CoOp(encoder, names).params == common | {"epochs": 50, "batch_size": 32}
    assert CoCoOp(encoder, names).params == common | {"epochs": 10, "batch_size": 1}


def test_cocoops_network_begins_as_torch_initialises_linear_layers(encoder, names):
    learned = CoCoOp(encoder, names)._beginning()
    width, inner = 16, 1  # a sixteenth
    assert learned["weight_in"].shape == (inner, width)
    assert learned["weight_out"].shape == (24, inner) and learned["bias_out"].shape == (24,)
    for name, bound in (("weight_in", width**-0.5), ("weight_out", inner**-0.5)):
        size = float(learned[name].abs().max())
        assert 0.75 * bound < size <= bound, name


def test_the_schedule_warms_up_and_falls():
    rates = [rate(epoch, 50, 0.002, warm_up=1) for epoch in range(50)]
    assert rates[0] == 1e-5 and rates[1] == 0.002
    assert all(a > b for a, b in itertools.pairwise(rates[1:]))
    assert rate(0, 2, 0.002, warm_up=0) == 0.002
