"""The control on views is what the queue methods start from, and plain CLIP is not."""

import numpy as np
import pytest
import reference
import torch

import soba
from soba.testing import example_stream, example_views

FEATURES, _, TEXT = example_stream(n=50, classes=6, width=16)
VIEWS = example_views(FEATURES, 64)


def test_the_surest_6_of_64_views():
    answers = soba.ClipViews(TEXT, logit_scale=30.0).adapt(VIEWS)
    for image, logits in zip(VIEWS, answers, strict=True):
        said = [reference.clip(view, TEXT, 30.0) for view in image]
        surest = sorted(said, key=lambda one: one[3])[:6]
        np.testing.assert_allclose(logits, np.mean([one[1] for one in surest], axis=0), atol=1e-4)


@pytest.mark.parametrize(
    "silent",
    [soba.TDA(TEXT, alpha=0.0, negative_alpha=0.0), soba.SOBA(TEXT, alpha=0.0, refresh=5)],
    ids=repr,
)
def test_a_queue_method_that_adds_nothing_is_the_control(silent):
    answers = silent.adapt(VIEWS)
    np.testing.assert_allclose(answers, soba.ClipViews(TEXT).adapt(VIEWS), atol=1e-4)


def test_zero_shot_scores_the_first_view():
    answers = soba.ZeroShot(TEXT).adapt(VIEWS)
    np.testing.assert_allclose(answers, soba.ZeroShot(TEXT).adapt(FEATURES), atol=1e-4)
    assert np.abs(answers - soba.ClipViews(TEXT).adapt(VIEWS)).max() > 1.0


def test_too_few_views():
    for rows in (FEATURES, VIEWS[:, :1]):
        with pytest.raises(ValueError, match=r"clip\+views needs views"):
            soba.ClipViews(TEXT).adapt(rows)


def test_torch_in_torch_out():
    answers = soba.ClipViews(TEXT).adapt(torch.asarray(VIEWS))
    assert isinstance(answers, torch.Tensor)
    np.testing.assert_allclose(answers.numpy(), soba.ClipViews(TEXT).adapt(VIEWS), atol=1e-5)
