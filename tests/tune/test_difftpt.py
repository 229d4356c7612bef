"""DiffTPT: its two filters, and no pretending about generated views."""

import pytest
import torch

from soba.tune.difftpt import DiffTPT


@pytest.mark.parametrize("sureness", [0.1, 10.0])  # of the original: it is filtered too
def test_filters_keep_what_the_official_code_keeps(encoder, names, sureness):
    tuner = DiffTPT(encoder, names, generated=63)
    logits = torch.randn(128, 5, generator=torch.Generator().manual_seed(0))
    logits[0] *= sureness
    views = tuner._choose(logits)
    # By hand: 101 of the 127 by cosine, the original in front, 30 of the 102 by entropy.
    near = sorted(
        range(1, 128), key=lambda i: -float(torch.cosine_similarity(logits[i], logits[0], dim=0))
    )[:101]
    probabilities = torch.softmax(logits, dim=1)
    entropy = -(probabilities * probabilities.log()).sum(dim=1)
    kept = sorted([0, *near], key=lambda i: float(entropy[i]))[:30]
    assert views.tolist() == kept
    assert (0 in kept) == (sureness > 1)


def test_constants_are_the_official_codes(encoder, names):
    assert DiffTPT(encoder, names, generated=63).params == {
        "generated": 63,
        "fallback": False,
        "steps": 4,
        "learning_rate": 5e-3,
        "similar": 0.8,
        "selection": 0.3,
    }


def test_without_generated_views_it_refuses(encoder, names, views):
    with pytest.raises(ValueError, match=r"generated=, or run without them with fallback=True"):
        DiffTPT(encoder, names)
    with pytest.raises(ValueError, match="20 views cannot be an original"):
        DiffTPT(encoder, names, generated=63).adapt(views)
    with pytest.raises(ValueError, match="leave none of 3 views"):
        DiffTPT(encoder, names, generated=1).adapt(views[:, :3])


def test_fallback_is_on_the_record(encoder, names, views):
    tuner = DiffTPT(encoder, names, fallback=True)
    assert tuner.adapt(views[:2]).shape == (2, 5)
    assert tuner.used_ == "views only"
    assert DiffTPT(encoder, names, generated=8).used_ == "8 generated views"
    assert tuner.steps == 4
