"""The parts of SOBA+'s Gaussian mixture, each against a loop over samples or a property."""

import math

import numpy as np
import pytest

from soba.adapt._mixture import (
    Covariance,
    Mixture,
    Shares,
    class_prior,
    held_back,
    second_moments,
    share_out,
    share_out_options,
)
from soba.testing import example_stream

CLASSES, WIDTH = 5, 8
ROWS, LABELS, TEXT = example_stream(n=60, classes=CLASSES, width=WIDTH, seed=3)


def random_shares(n=60, seed=0, absent=()):
    """Responsibilities (n, C) whose rows sum to less than 1, with classes that have none."""
    shares = np.random.default_rng(seed).gamma(0.3, size=(n, CLASSES)) + 1e-3
    shares[:, list(absent)] = 0.0
    return (0.9 * shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)


def assert_same(shares, expected):
    for name in ("mass", "squares", "sums"):
        np.testing.assert_allclose(
            getattr(shares, name), getattr(expected, name), rtol=1e-5, atol=1e-5
        )


def test_shares_equal_a_loop():
    given = random_shares()
    shares = share_out(ROWS, given)
    for k in range(CLASSES):
        mass, squares, total = 0.0, 0.0, np.zeros(WIDTH)
        for row, share in zip(ROWS.astype(float), given.astype(float), strict=True):
            mass, squares, total = mass + share[k], squares + share[k] ** 2, total + share[k] * row
        assert shares.mass[k] == pytest.approx(mass, rel=1e-5)
        assert shares.squares[k] == pytest.approx(squares, rel=1e-5)
        np.testing.assert_allclose(shares.sums[k], total, rtol=1e-4, atol=1e-5)


def test_shares_add_and_subtract():
    given = random_shares()
    whole, first = share_out(ROWS, given), share_out(ROWS[:25], given[:25])
    rest = share_out(ROWS[25:], given[25:])
    assert_same(first + rest, whole)
    assert_same(rest + first, whole)
    assert_same(whole - rest, first)
    assert_same(whole - first - rest, Shares(np.zeros(5), np.zeros(5), np.zeros((5, WIDTH))))


def test_a_difference_that_rounds_below_nothing_is_nothing():
    given = random_shares()
    whole = share_out(ROWS, given)
    left = whole - share_out(ROWS, given * np.float32(1.0 + 1e-6))
    assert (left.mass == 0.0).all() and (left.squares == 0.0).all()
    assert not left.seen.any() and left.means.shape == (0, WIDTH)


def test_few_options_equal_dense_responsibilities():
    rng = np.random.default_rng(1)
    options = np.array([rng.permutation(CLASSES)[:3] for _ in ROWS])
    share = rng.random((60, 3))
    dense = np.zeros((60, CLASSES))
    for i in range(60):
        for j in range(3):
            dense[i, options[i, j]] += share[i, j]
    assert_same(share_out_options(ROWS, options, share, CLASSES), share_out(ROWS, dense))
    some = np.flatnonzero((options != 4).all(axis=1))  # a class that nothing goes to
    without = share_out_options(ROWS[some], options[some], share[some], CLASSES)
    assert without.mass[4] == 0.0 and not without.sums[4].any()
    nothing = share_out_options(ROWS[:0], options[:0], share[:0], CLASSES)
    assert not nothing.mass.any() and not nothing.sums.any()


def test_means_are_those_of_the_seen_classes():
    shares = share_out(ROWS, random_shares(absent=[1, 3]))
    assert shares.seen.tolist() == [True, False, True, False, True]
    given = random_shares(absent=[1, 3]).astype(float)
    expected = [np.average(ROWS, axis=0, weights=given[:, k]) for k in (0, 2, 4)]
    np.testing.assert_allclose(shares.means, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("absent", [(), (2,), (0, 4)])
def test_the_covariance_equals_a_loop(absent):
    """Around the class means, by the degrees of freedom that weights leave, and its ridge."""
    given = random_shares(absent=absent).astype(float)
    scatter, freedom = np.zeros((WIDTH, WIDTH)), 0.0
    for k in set(range(CLASSES)) - set(absent):
        mean = np.average(ROWS, axis=0, weights=given[:, k])
        for row, share in zip(ROWS, given[:, k], strict=True):
            scatter += share * np.outer(row - mean, row - mean)
            freedom += share
        freedom -= sum(share**2 for share in given[:, k]) / sum(given[:, k])
    S = scatter / freedom
    sizes = np.linalg.eigvalsh(S)
    ridge = np.average(sizes, weights=sizes)
    shares = share_out(ROWS, given.astype(np.float32))
    moments = second_moments(ROWS, given.sum(axis=1))
    covariance = Covariance.within(moments, shares)
    assert covariance.trace == pytest.approx(sizes.sum(), rel=1e-4)
    expected = np.linalg.inv(S + ridge * np.eye(WIDTH))
    np.testing.assert_allclose(covariance.inverse, expected, atol=1e-3 * np.abs(expected).max())
    assert covariance.overlap == pytest.approx((sizes / (sizes + ridge)).sum(), rel=1e-3)


def test_whole_samples_have_the_textbook_covariance():
    given = np.eye(CLASSES, dtype=np.float32)[LABELS]
    covariance = Covariance.within(second_moments(ROWS, np.ones(60)), share_out(ROWS, given))
    members = [ROWS[label == LABELS] for label in range(CLASSES)]
    pooled = sum((len(rows) - 1) * np.trace(np.cov(rows.T)) for rows in members)
    assert covariance.trace == pytest.approx(pooled / (60 - CLASSES), rel=1e-4)


def test_no_scatter_is_no_covariance():
    alone = np.eye(CLASSES, dtype=np.float32)
    moments = second_moments(ROWS[:CLASSES], np.ones(CLASSES))
    assert Covariance.within(moments, share_out(ROWS[:CLASSES], alone)) is None
    copies = np.repeat(ROWS[:CLASSES], 6, axis=0)
    shares = share_out(copies, np.repeat(alone, 6, axis=0))
    assert Covariance.within(second_moments(copies, np.ones(30)), shares) is None
    assert Mixture.fitted(shares, None, TEXT) is None


def near_labels(sure=0.8, thin=None):
    """Responsibilities that follow the labels, so that class means follow the text."""
    given = sure * np.eye(CLASSES)[LABELS] + (1 - sure) * random_shares()
    if thin is not None:
        given[:, 0] *= thin / given[:, 0].sum()  # so much of a sample is left of class 0
    return given.astype(np.float32)


def fit(rows, given, text=TEXT):
    shares = share_out(rows, given)
    covariance = Covariance.within(second_moments(rows, given.sum(axis=1)), shares)
    return covariance, Mixture.fitted(shares, covariance, text)


def test_scores_of_options_are_the_scores_at_these():
    rng = np.random.default_rng(2)
    model = fit(ROWS, near_labels())[1]
    options = rng.integers(CLASSES, size=(60, 3))
    dense, bias = model.score(ROWS), model.bias.copy()
    for i in range(60):
        for k in range(CLASSES):
            score = float(ROWS[i].astype(float) @ model.weights[k]) + model.bias[k]
            assert dense[i, k] == pytest.approx(score, abs=1e-4)
    at_options = model.score_options(ROWS, options)
    np.testing.assert_allclose(at_options, np.take_along_axis(dense, options, 1), atol=1e-4)
    np.testing.assert_array_equal(model.bias, bias)  # neither writes into the model
    assert model.score_options(ROWS[:0], options[:0]).shape == (0, 3)


def test_scores_are_those_of_gaussians_around_posterior_means():
    """Differences between classes are those of Mahalanobis distances, halved and set right."""
    given = near_labels()
    given[:, 3] = 0.0  # not seen: the text alone
    shares, (covariance, model) = share_out(ROWS, given), fit(ROWS, given)
    assert model.slope > 0.1
    A, n = covariance.inverse.astype(float), shares.mass
    means = np.zeros((CLASSES, WIDTH))
    means[shares.seen] = shares.means
    centre = shares.means.mean(axis=0)
    text = TEXT - TEXT[shares.seen].mean(axis=0)
    expected = np.zeros((60, CLASSES))
    for k in range(CLASSES):
        prior = centre + model.slope * text[k]
        mean = (n[k] * means[k] + model.kappa * prior) / (n[k] + model.kappa)
        for i, row in enumerate(ROWS):
            expected[i, k] = -(row - mean) @ A @ (row - mean) / 2
            expected[i, k] += covariance.overlap / (2 * (n[k] + model.kappa))
    scores = model.score(ROWS)
    scores, expected = (a - a.mean(axis=1, keepdims=True) for a in (scores, expected))
    np.testing.assert_allclose(scores, expected, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("thin", [None, 0.3, 0.06, 0.04])
def test_slope_and_worth_of_the_text_equal_a_loop(thin):
    """Regression of class means on text, and what of their variance it leaves, noise taken off."""
    given = near_labels(thin=thin)
    covariance, model = fit(ROWS, given)
    seen = [k for k in range(CLASSES) if given[:, k].sum() > 0.05]
    assert len(seen) == (4 if thin == 0.04 else 5)
    means = {k: np.average(ROWS.astype(float), axis=0, weights=given[:, k]) for k in seen}
    centre = sum(means.values()) / len(seen)
    middle = sum(TEXT[k] for k in seen) / len(seen)
    n = {k: float(given[:, k].sum()) for k in seen}
    above = sum(n[k] * (means[k] - centre) @ (TEXT[k] - middle) for k in seen)
    below = sum(n[k] * (TEXT[k] - middle) @ (TEXT[k] - middle) for k in seen)
    slope = above / below
    assert slope > 0.1
    variance = 0.0
    for k in seen:
        left = means[k] - centre - slope * (TEXT[k] - middle)
        noise = covariance.trace * sum((given[:, k] / n[k]) ** 2)
        variance += n[k] / sum(n.values()) * (left @ left - noise)
    assert variance > 1e-3 * covariance.trace
    assert model.slope == pytest.approx(slope, rel=1e-3)
    assert model.kappa == pytest.approx(covariance.trace / variance, rel=1e-2)
    np.testing.assert_allclose(model.centre, centre, atol=1e-5)


def test_means_that_lie_where_the_text_says_leave_the_text_its_full_worth():
    """The variance around the prior is then no more than noise: kappa is at its bound."""
    rng = np.random.default_rng(0)
    labels = np.arange(4000) % CLASSES
    rows = (TEXT[labels] + rng.normal(size=(4000, WIDTH))).astype(np.float32)
    _, model = fit(rows, np.eye(CLASSES, dtype=np.float32)[labels])
    assert model.slope == pytest.approx(1.0, abs=0.1)
    assert model.kappa > 300.0
    exact = np.repeat(TEXT, 2, axis=0)
    exact[::2] += 0.1
    exact[1::2] -= 0.1  # the means are the text itself: nothing is left but noise
    _, model = fit(exact, np.eye(CLASSES, dtype=np.float32)[np.arange(10) // 2])
    assert model.kappa == pytest.approx(1000.0)


def test_text_that_points_the_wrong_way_has_no_slope():
    given = near_labels()
    _, model = fit(ROWS, given, text=-TEXT)
    assert model.slope == 0.0
    _, without = fit(ROWS, given, text=0.0 * TEXT)
    np.testing.assert_allclose(without.weights, model.weights, rtol=1e-4, atol=1e-5)


def test_less_than_half_a_degree_of_freedom_is_no_scatter():
    for share, some in ((0.7, True), (0.6, True), (0.4, False)):
        rows = ROWS[:4]
        given = np.zeros((4, CLASSES), np.float32)
        given[[0, 1], 0] = given[[2, 3], 1] = share / 2.0  # freedom: mass - squares / mass
        covariance = Covariance.within(
            second_moments(rows, given.sum(axis=1)), share_out(rows, given)
        )
        freedom = 2 * (share - share / 2)
        assert (covariance is not None) == (freedom > 0.5) == some


def test_one_class_is_no_mixture():
    given = random_shares(absent=[0, 1, 3, 4])
    shares = share_out(ROWS, given)
    covariance = Covariance.within(second_moments(ROWS, given.sum(axis=1)), shares)
    assert covariance is not None and Mixture.fitted(shares, covariance, TEXT) is None


def slow_prior(logits, rounds=10):
    """EM of class frequencies, sample by sample; pseudo-counts by moments."""
    n, classes = logits.shape
    prior = [1.0 / classes] * classes
    for _ in range(rounds):
        counts = [0.0] * classes
        for row in logits.astype(float):
            weighted = [p * np.exp(z - row.max()) for p, z in zip(prior, row, strict=True)]
            counts = [c + w / sum(weighted) for c, w in zip(counts, weighted, strict=True)]
        mean = sum(counts) / classes
        variance = sum((c - mean) ** 2 for c in counts) / (classes - 1)
        # A Dirichlet-multinomial of pseudo-count a: variance = chance * (n + C a) / (1 + C a).
        chance = n * (1 / classes) * (1 - 1 / classes)
        pseudo = 1e4
        if variance > chance:
            pseudo = (n - variance / chance) / (variance / chance - 1) / classes
            pseudo = min(max(pseudo, 0.05), 1e4)
        prior = [(c + pseudo) / (n + classes * pseudo) for c in counts]
    return np.array(prior)


def logits_of(labels, classes, height=8.0, noise=1.0):
    rng = np.random.default_rng(5)
    logits = noise * rng.normal(size=(len(labels), classes))
    logits[np.arange(len(labels)), labels] += height
    return logits.astype(np.float32)


@pytest.mark.parametrize(
    "labels",
    [
        np.arange(200) % 10,
        np.random.default_rng(0).integers(10, size=200),
        np.random.default_rng(0).integers(3, size=200),
        np.minimum(np.random.default_rng(0).geometric(0.3, size=200), 10) - 1,
        np.zeros(200, int),
    ],
    ids=["even", "drawn evenly", "three", "long tail", "one"],
)
@pytest.mark.parametrize("height", [1.0, 8.0])
def test_the_class_prior_equals_a_loop(labels, height):
    logits = logits_of(labels, 10, height)
    prior = class_prior(logits)
    np.testing.assert_allclose(prior, slow_prior(logits), rtol=1e-4, atol=1e-7)
    assert prior.sum() == pytest.approx(1.0)
    assert (prior > 0.0).all()


def test_even_counts_have_an_even_prior():
    prior = class_prior(logits_of(np.arange(200) % 10, 10))
    np.testing.assert_allclose(prior, 0.1, rtol=1e-3)
    assert class_prior(np.zeros((5, 1), np.float32)).tolist() == [1.0]


def test_counts_that_vary_by_chance_hardly_move_the_prior():
    """Just above what chance makes of them, the pseudo-counts are in the thousands."""
    near_chance = False
    for seed in range(40):
        labels = np.random.default_rng(seed).integers(10, size=200)
        logits = logits_of(labels, 10, height=30.0)
        counts = np.bincount(labels, minlength=10)
        ratio = counts.var(ddof=1) / (20 * 0.9)
        np.testing.assert_allclose(class_prior(logits), slow_prior(logits), rtol=1e-4)
        if 1.0 < ratio < 1.1:
            near_chance = True
            assert np.abs(class_prior(logits) - 0.1).max() < 0.01
    assert near_chance


def test_absent_classes_have_a_prior_of_almost_nothing():
    labels = np.random.default_rng(0).integers(3, size=200)
    prior = class_prior(logits_of(labels, 20))
    np.testing.assert_allclose(prior[:3], np.bincount(labels) / 200, atol=0.02)
    assert prior[3:].max() < 0.005
    # A constant added to a row says nothing of its class.
    shifted = logits_of(labels, 20) + np.linspace(-500, 500, 200, dtype=np.float32)[:, None]
    np.testing.assert_allclose(class_prior(shifted), prior, rtol=1e-3)


def test_a_prior_is_held_back_unless_many_classes_do_not_occur():
    np.testing.assert_allclose(held_back(np.full(8, 0.125), 0.25), 0.0, atol=1e-12)
    assert held_back(np.ones(1), 0.5).tolist() == [0.0]
    few = held_back(np.array([0.5, 0.5] + [1e-12] * 98), 0.25)  # two of a hundred
    uneven = held_back(np.array([0.4] + [0.2] * 3), 0.5)
    assert few[0] == pytest.approx(math.log(50.0) * 0.98**0.25, rel=1e-4)
    perplexity = 2.0 ** (-0.4 * math.log2(0.4) - 0.6 * math.log2(0.2))
    share = (1.0 - perplexity / 4.0) ** 0.5
    np.testing.assert_allclose(uneven, share * np.log([1.6, 0.8, 0.8, 0.8]), rtol=1e-9)
    assert 0.1 < share < 0.4
