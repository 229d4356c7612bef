"""MTA against a loop over images and against its own equations, on random and real features."""

import numpy as np
import pytest
import reference
import torch
from rounding import assert_same_logits

import soba
from soba.adapt import _arrays
from soba.testing import example_stream, example_views

FEATURES, _, TEXT = example_stream(n=60, classes=7, width=20)
VIEWS = example_views(FEATURES, 32)
PROMPTS = TEXT + 0.1 * np.random.default_rng(1).normal(size=(9, *TEXT.shape))


def real_views(path, n=40, views=64):
    """Real features with scattered copies as views: crops move a feature about as far."""
    feature_set = soba.FeatureSet.load(path)
    rows = np.random.default_rng(0).permutation(len(feature_set))[:n]
    features = feature_set.image_features[rows].astype(np.float64)
    spread = example_views(np.zeros_like(features) + 1e-9, views)  # unit noise
    scattered = features[:, None, :] + 0.5 * spread
    scattered[:, 0] = features
    return scattered / np.linalg.norm(scattered, axis=-1, keepdims=True), feature_set


def check_fixed_point(adapter, views, tolerance):
    """The three equations of the paper, image by image."""
    modes, inlierness = adapter.solve(views)
    text = adapter.text_features.astype(np.float64)
    for E, mode, y in zip(views, modes, inlierness, strict=True):
        P = reference.probabilities(adapter.logit_scale * E @ text.T)
        density = reference.mta_density(E, mode, reference.mta_bandwidths(E))
        agreement = adapter.lambda_q * (P @ P.T @ y)
        expected = reference.probabilities((density + agreement) / adapter.lambda_y)
        np.testing.assert_allclose(y, expected, atol=tolerance)
        np.testing.assert_allclose(mode, reference.unit(density * y @ E), atol=tolerance)


@pytest.mark.parametrize("logit_scale", [20.0, 100.0])
def test_the_fixed_point_of_random_views(logit_scale):
    # Scaled text in float32 is what the adapter keeps; all else is float64 here.
    adapter = soba.MTA(TEXT, logit_scale=logit_scale, iterations=None, tolerance=1e-10)
    check_fixed_point(adapter, VIEWS, 1e-6)
    with pytest.raises(AssertionError):  # a single step is not at it
        check_fixed_point(
            soba.MTA(TEXT, logit_scale=logit_scale, iterations=1, inner=1), VIEWS, 1e-6
        )


def test_the_fixed_point_of_real_views(whurs19):
    views, feature_set = real_views(whurs19, n=20)
    adapter = soba.MTA(feature_set.text_features, iterations=None, tolerance=1e-10)
    check_fixed_point(adapter, views, 1e-6)


@pytest.mark.parametrize("views", [5, 10, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_random_views_as_in_a_loop(views, dtype):
    rows = example_views(FEATURES, views)
    logits = soba.MTA(TEXT).adapt(rows.astype(dtype))
    expected = np.array([reference.mta(image, TEXT) for image in rows])
    assert_same_logits(logits, expected, 1e-5 if dtype is np.float32 else 2e-7)


def test_other_weights_as_in_a_loop():
    options = {"logit_scale": 30.0, "lambda_q": 1.0, "lambda_y": 0.5}
    expected = np.array([reference.mta(image, TEXT, **options) for image in VIEWS])
    np.testing.assert_allclose(soba.MTA(TEXT, **options).adapt(VIEWS), expected, atol=1e-5)


def test_real_views_as_in_a_loop(whurs19):
    views, feature_set = real_views(whurs19)
    expected = np.array([reference.mta(image, feature_set.text_features) for image in views])
    logits = soba.MTA(feature_set.text_features).adapt(views.astype(np.float32))
    assert_same_logits(logits, expected, 3e-5)  # the steps magnify rounding


def test_an_image_that_converges_early_waits_for_the_others():
    """Alike views converge at once; beside them, others go on as if alone."""
    alike = np.repeat(FEATURES[:1, None], 32, axis=1)
    mixed = np.concatenate([alike, VIEWS[:5], alike])
    adapter = soba.MTA(TEXT, iterations=None)
    modes, inlierness = adapter.solve(mixed)
    alone = adapter.solve(VIEWS[:5])
    np.testing.assert_allclose(modes[1:6], alone[0], atol=1e-9)
    np.testing.assert_allclose(inlierness[1:6], alone[1], atol=1e-9)
    np.testing.assert_allclose(modes[0], FEATURES[0], atol=1e-12)
    np.testing.assert_allclose(inlierness[0], 1 / 32, atol=1e-12)


def test_two_tight_clusters_far_apart_do_not_underflow():
    views = np.repeat(np.eye(20)[None, :2], 8, axis=1).astype(np.float32)  # (1, 16, 20)
    logits = soba.MTA(TEXT).adapt(views)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(logits, soba.ZeroShot(TEXT).logits(views[:, 0]), rtol=1e-5)


@pytest.mark.parametrize("views", [7, 10, 32])
def test_an_image_has_the_same_mode_in_any_company(monkeypatch, views):
    """To rounding, although the steps magnify it; see the file's header."""
    adapter, rows = soba.MTA(TEXT), example_views(FEATURES, views).astype(np.float32)
    modes, inlierness = adapter.solve(rows)
    order = np.random.default_rng(0).permutation(len(rows))
    shuffled = adapter.solve(rows[order])
    np.testing.assert_allclose(shuffled[0], modes[order], atol=1e-5)
    np.testing.assert_allclose(shuffled[1], inlierness[order], atol=1e-5)
    monkeypatch.setattr(_arrays, "_BLOCK_LOGITS", 1)  # blocks of one image
    alone = adapter.solve(rows)
    np.testing.assert_allclose(alone[0], modes, atol=1e-5)
    np.testing.assert_allclose(alone[1], inlierness, atol=1e-5)


@pytest.mark.parametrize("views", [1, 4])
def test_too_few_views(views):
    with pytest.raises(ValueError, match=r"mta needs views: .* V of 5 at least, not \(60, "):
        soba.MTA(TEXT).adapt(VIEWS[:, :views])
    with pytest.raises(ValueError, match=r"mta needs views: .* not \(60, 20\)"):
        soba.MTA(TEXT).adapt(FEATURES)


def test_bad_settings():
    for bad in ({"lambda_y": 0.0}, {"lambda_q": -1.0}, {"iterations": 0}, {"inner": 1.5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            soba.MTA(TEXT, **bad)


def test_torch_in_torch_out():
    for adapter in (soba.MTA(TEXT), soba.MTAEnsembleVote(PROMPTS)):
        logits = adapter.adapt(torch.asarray(VIEWS))
        assert isinstance(logits, torch.Tensor)
        np.testing.assert_allclose(logits.numpy(), adapter.adapt(VIEWS), atol=1e-5)


def test_the_mean_of_the_prompts():
    mean = reference.unit(reference.unit(PROMPTS).mean(axis=0))
    logits = soba.MTAEnsembleMean(PROMPTS).adapt(VIEWS)
    np.testing.assert_allclose(logits, soba.MTA(mean).adapt(VIEWS), atol=1e-4)


def test_the_vote_of_the_prompts():
    adapter = soba.MTAEnsembleVote(PROMPTS, logit_scale=30.0)
    logits, shares = adapter.adapt(VIEWS), adapter.probabilities(VIEWS)
    votes = np.empty_like(shares)
    for i, image in enumerate(VIEWS):
        winner, votes[i] = reference.mta_vote(image, PROMPTS, 30.0)
        assert logits[i].argmax() == winner
    assert (votes.max(axis=1) < 9).sum() > 5  # not all of one mind
    np.testing.assert_allclose(shares, votes / 9, atol=2e-3)


def test_a_tie_of_the_prompts_goes_to_the_higher_mean_logit():
    views = example_views(np.array([[0.8, 0.6, 0.0]]), 5)
    swapped = np.array([[0, 1, 0], [0.9, 0.1, 0], [0, 0, 1]])
    for prompts in (np.stack([np.eye(3), swapped]), np.stack([swapped, np.eye(3)])):
        winner, votes = reference.mta_vote(views[0], prompts)
        assert votes == [1, 1, 0]
        assert soba.MTAEnsembleVote(prompts).adapt(views).argmax() == winner == 1


def test_one_prompt_is_one_vote():
    answers = soba.MTAEnsembleVote(TEXT).adapt(VIEWS).argmax(axis=1)
    assert np.array_equal(answers, soba.MTA(TEXT).adapt(VIEWS).argmax(axis=1))


def test_prompts_are_saved_and_checked(tmp_path):
    adapter = soba.MTAEnsembleVote(PROMPTS)
    adapter.save(tmp_path / "vote")
    loaded = soba.load(tmp_path / "vote", expect={"text_features": PROMPTS})
    assert np.array_equal(loaded.adapt(VIEWS), adapter.adapt(VIEWS))
    with pytest.raises(ValueError, match="other text features"):
        soba.load(tmp_path / "vote", expect={"text_features": PROMPTS[:3]})
    spoiled = PROMPTS.copy()
    spoiled[4, 2] = 0.0
    with pytest.raises(ValueError, match="prompt 4: row 2 is all zeros"):
        soba.MTAEnsembleVote(spoiled)
    with pytest.raises(ValueError, match=r"\(P, C, d\) or \(C, d\)"):
        soba.MTAEnsembleMean(np.ones((2, 2, 3, 4)))
    with pytest.raises(ValueError, match=r"must have shape \(C, d\)"):
        soba.MTA(PROMPTS)
