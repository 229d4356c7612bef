"""ZERO against a loop that counts votes."""

import numpy as np
import pytest
import reference
import torch

import soba
from soba.testing import example_stream, example_views

FEATURES, _, TEXT = example_stream(n=80, classes=9, width=20)
VIEWS = example_views(FEATURES, 64)
VIEWS = VIEWS + 0.2 * np.random.default_rng(5).normal(size=VIEWS.shape)  # more doubt


@pytest.mark.parametrize("views", [2, 10, 64])
@pytest.mark.parametrize("keep", [0.3, 1.0])
def test_votes_as_in_a_loop(views, keep):
    adapter = soba.ZERO(TEXT, logit_scale=20.0, keep=keep)
    logits, shares = adapter.adapt(VIEWS[:, :views]), adapter.probabilities(VIEWS[:, :views])
    ties = 0
    for image, z, share in zip(VIEWS[:, :views], logits, shares, strict=True):
        winner, votes = reference.zero(image, TEXT, 20.0, keep)
        ties += votes.count(max(votes)) > 1
        assert z.argmax() == winner
        np.testing.assert_allclose(share, np.array(votes) / sum(votes), atol=0.006)
    assert ties > 0 or (views, keep) == (2, 0.3)  # where a single view votes


def view(label, sure):
    """A view of class `label` of 4 that leaves more doubt the less sure it is."""
    feature = np.full(4, 1.0 - sure)
    feature[label] = 1.0
    return feature


def test_ties_walk_the_discarded_views():
    """Views of falling confidence; the first half of them votes."""
    zero = soba.ZERO(np.eye(4), logit_scale=10.0, keep=0.5)

    def winner(*labels):
        sureness = np.linspace(0.9, 0.5, len(labels))
        views = np.stack([view(k, s) for k, s in zip(labels, sureness, strict=True)])
        shuffled = views[np.random.default_rng(0).permutation(len(views))]
        voted = int(zero.adapt(shuffled[None]).argmax())
        assert voted == reference.zero(shuffled, np.eye(4), 10.0, 0.5)[0]
        return voted

    assert winner(2, 2, 1, 1, 1, 1) == 2  # no tie: the discarded have no vote
    assert winner(1, 2, 2, 1) == 2  # a tie of 1 and 2: the surest of the discarded decides
    assert winner(1, 2, 3, 1) == 1  # class 3 is not among the tied
    assert winner(3, 1, 0, 0) == 3  # none of the discarded helps: the mean logit does


def test_a_tie_break_outvotes_nobody():
    zero = soba.ZERO(TEXT, keep=1.0)
    shares = zero.probabilities(VIEWS[:, :19])
    assert (np.abs(shares * 19 - np.round(shares * 19)) < 0.02).all()
    assert np.isfinite(zero.adapt(VIEWS)).all()


def test_too_few_views_and_bad_settings():
    with pytest.raises(ValueError, match=r"zero needs views: .* not \(80, 1, 20\)"):
        soba.ZERO(TEXT).adapt(VIEWS[:, :1])
    with pytest.raises(ValueError, match=r"zero needs views: .* not \(80, 20\)"):
        soba.ZERO(TEXT).adapt(FEATURES)
    for keep in (0.0, 1.5):
        with pytest.raises(ValueError, match="keep"):
            soba.ZERO(TEXT, keep=keep)


def test_torch_in_torch_out():
    logits = soba.ZERO(TEXT).adapt(torch.asarray(VIEWS))
    assert isinstance(logits, torch.Tensor)
    np.testing.assert_allclose(logits.numpy(), soba.ZERO(TEXT).adapt(VIEWS), atol=1e-5)
