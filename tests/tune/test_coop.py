"""CoOp and CoCoOp: they learn, they transfer, they say what is missing."""

import itertools

import numpy as np
import pytest
import torch

from soba.adapt._few_shot import NotFittedError
from soba.adapt.zero_shot import ZeroShot
from soba.tune._training import rate
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
    chances = tuner.predict_proba(features)[np.arange(len(labels)), labels]
    assert -np.log(chances).mean() < tuner.losses_[-1] * 1.05 < tuner.losses_[0]


def test_coop_beats_the_words_it_began_with(encoder, names, support):
    features, labels = support
    tuner = CoOp(encoder, names, batch_size=5, epochs=8, learning_rate=2e-4).fit(*support)
    zero_shot = (features @ tuner.text_features.T).argmax(axis=1)
    assert (tuner.predict(features).argmax(axis=1) == labels).mean() > (zero_shot == labels).mean()


@pytest.mark.parametrize("cls", [CoOp, CoCoOp])
def test_seeds(cls, encoder, names, support):
    def fitted(seed):
        return cls(encoder, names, seed=seed, batch_size=5, context=2, epochs=2).fit(*support)

    np.testing.assert_array_equal(fitted(3).predict(support[0]), fitted(3).predict(support[0]))
    assert not np.array_equal(fitted(3).predict(support[0]), fitted(4).predict(support[0]))


@pytest.mark.parametrize("cls", [CoOp, CoCoOp])
def test_transfer_keeps_what_was_learned(cls, encoder, names, support):
    tuner = cls(encoder, names, batch_size=5, **FAST).fit(*support)
    same = tuner.with_classes(names[::-1])
    np.testing.assert_allclose(
        same.predict(support[0]), tuner.predict(support[0])[:, ::-1], atol=1e-4
    )
    other = tuner.with_classes(["gnu", "elk", "yak"])
    assert other.predict(support[0]).shape == (20, 3)
    assert other.tuned_on_ == "given"


def test_cocoop_is_one_text_for_each_image(encoder, names, support):
    """Against one image at a time, through the parts."""
    tuner = CoCoOp(encoder, names, **FAST).fit(*support)
    found = tuner.predict(support[0])
    learned = tuner._learned
    for row, logits in zip(torch.asarray(support[0]), found, strict=True):
        hidden = torch.relu(learned["weight_in"] @ row + learned["bias_in"])
        shift = learned["weight_out"] @ hidden + learned["bias_out"]
        text = tuner._prompts.features(learned["context"] + shift)
        np.testing.assert_allclose(logits, (tuner.scale * text @ row).numpy(), atol=1e-4)


def test_views_are_drawn_from(encoder, names, support):
    features, labels = support
    views = np.repeat(features[:, None], 3, axis=1)
    one = CoOp(encoder, names, epochs=2).fit(views, labels)
    assert len(one.losses_) == 2
    varied = views + 0.1 * np.random.default_rng(0).normal(size=views.shape).astype(np.float32)
    other = CoOp(encoder, names, epochs=2).fit(varied, labels)
    assert one.losses_ != other.losses_


@pytest.mark.parametrize("cls", [CoOp, CoCoOp])
def test_of_views_the_image_is_scored_as_zero_shot_does(cls, encoder, names, support, views):
    tuner = cls(encoder, names, batch_size=5, epochs=2).fit(*support)
    for kind in (np.asarray, torch.asarray):
        np.testing.assert_array_equal(
            np.asarray(tuner.predict(kind(views))), np.asarray(tuner.predict(kind(views[:, 0])))
        )
    clip = ZeroShot(tuner.text_features, scale=tuner.scale)
    np.testing.assert_array_equal(clip.predict(views), clip.predict(views[:, 0]))


def test_what_is_missing_is_said(encoder, names, support, views):
    features, labels = support
    with pytest.raises(NotFittedError, match="coop needs labelled samples"):
        CoOp(encoder, names).predict(features)
    with pytest.raises(NotFittedError, match="cocoop needs labelled samples"):
        CoCoOp(encoder, names).adapt(views)
    with pytest.raises(ValueError, match="no labelled samples of 1 classes: 2"):
        CoOp(encoder, names).fit(features[labels != 2], labels[labels != 2])
    with pytest.raises(ValueError, match="labels out of range"):
        CoOp(encoder, names[:4]).fit(features, labels)
    fitted = CoOp(encoder, names, epochs=1).fit(features, labels)
    with pytest.raises(NotFittedError):
        fitted.reset().predict(features)


def test_the_schedule_warms_up_and_falls():
    rates = [rate(epoch, 50, 0.002, warm_up=1) for epoch in range(50)]
    assert rates[0] == 1e-5 and rates[1] == 0.002
    assert all(a > b for a, b in itertools.pairwise(rates[1:]))
    assert rate(0, 2, 0.002, warm_up=0) == 0.002
