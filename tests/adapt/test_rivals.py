"""The rivals: parity with slow references, examples worked by hand, and what they refuse."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import rival_reference as slow
from conftest import REAL_DATA

import soba
from soba.testing import example_stream

SCALE = 20.0
STREAM, _, TEXT = example_stream(n=150, classes=7, width=12, seed=3)


def relative(logits):
    """But for a constant of each row."""
    return logits - logits.mean(axis=1, keepdims=True)


def real(rows, name="whurs19/clip_vitb32"):
    path = REAL_DATA / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    features = soba.FeatureSet.load(path)
    order = np.random.default_rng(0).permutation(len(features))[:rows]
    return features.image_features[order].astype(np.float64), features.text_features


def check(logits, expected, tolerance=1e-6):
    assert np.abs(logits - expected).max() <= tolerance * np.abs(expected).max()


def text_of(adapter):
    return adapter.text_features.astype(np.float64)


SMALL_OGA = {"batch": 7, "capacity": 3, "tau": 0.2}
CASES = {  # adapter and reference, both of (text, scale)
    "etta": (soba.ETTA, slow.etta, {}, {}),
    "oga": (soba.OGA, slow.oga, {}, {}),
    "oga, small": (soba.OGA, slow.oga, SMALL_OGA, SMALL_OGA),
    "adapt": (soba.ADAPT, slow.adapt, {"refresh": 1}, {}),
    "adapt, small": (
        soba.ADAPT,
        slow.adapt,
        {"refresh": 1, "capacity": 2, "image_weight": 0.6, "sharpness": 50.0},
        {"capacity": 2, "image_weight": 0.6, "sharpness": 50.0},
    ),
    "adapt, covariance later": (soba.ADAPT, slow.adapt, {"refresh": 9}, {"every": 9}),
    "dota": (soba.DOTA, slow.dota, {"refresh": 1}, {}),
    "dota, often": (
        soba.DOTA,
        slow.dota,
        {"refresh": 8, "sigma": 0.01, "epsilon": 0.01, "eta": 0.3, "rho": 0.02},
        {"every": 8, "sigma": 0.01, "epsilon": 0.01, "eta": 0.3, "rho": 0.02},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_parity_on_a_random_stream(name):
    cls, reference, params, theirs = CASES[name]
    adapter = cls(TEXT, logit_scale=SCALE, **params)
    expected = reference(STREAM, text_of(adapter), SCALE, **theirs)
    logits = adapter.adapt(STREAM)
    if cls in (soba.OGA, soba.DOTA):
        logits, expected = relative(logits), relative(expected)
    check(logits, expected)


@pytest.mark.parametrize("name", ["etta", "oga", "adapt", "dota"])
def test_parity_on_real_features(name):
    cls, reference, params, theirs = CASES[name]
    x, text = real(120)
    if name in ("adapt", "dota"):  # the references invert a d x d matrix each time
        params, theirs = {"refresh": 40}, {"every": 40}
    adapter = cls(text, **params)
    expected = reference(x, text_of(adapter), 100.0, **theirs)
    logits = adapter.adapt(x)
    assert np.array_equal(logits.argmax(axis=1), expected.argmax(axis=1))
    if cls in (soba.OGA, soba.DOTA):
        logits, expected = relative(logits), relative(expected)
    check(logits, expected, 1e-5)


def test_oga_with_more_samples_than_four_times_the_dimensions():
    stream, _, text = example_stream(n=200, classes=5, width=3, seed=1)
    adapter = soba.OGA(text, logit_scale=SCALE)
    expected = slow.oga(stream, text_of(adapter), SCALE)
    assert len(adapter.queue) == 0 and expected.shape == (200, 5)
    check(relative(adapter.adapt(stream)), relative(expected), 1e-5)
    assert len(adapter.queue) > 12


@pytest.mark.parametrize("rows", [40, 150])
def test_adapt_parity_on_a_set(rows):
    adapter = soba.ADAPT(TEXT, logit_scale=SCALE)
    check(adapter.transduce(STREAM[:rows]), slow.adapt_set(STREAM[:rows], text_of(adapter), SCALE))
    small = soba.ADAPT(TEXT, logit_scale=SCALE, set_capacity=2, sharpness=60.0, image_weight=0.5)
    expected = slow.adapt_set(STREAM[:rows], text_of(adapter), SCALE, 2, 0.5, 60.0)
    check(small.transduce(STREAM[:rows]), expected)


def test_adapt_parity_on_a_real_set():
    x, text = real(150)
    adapter = soba.ADAPT(text)
    expected = slow.adapt_set(x, text_of(adapter), 100.0)
    check(adapter.transduce(x), expected, 1e-5)


def chances(logits):
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    "params",
    [{}, {"rounds": 1}, {"rounds": 3, "neighbours": 5, "confident": 3, "steps": 2}],
    ids=str,
)
def test_transclip_parity(params):
    rounds = {"rounds": params["rounds"]} if params else {}
    given = {name: value for name, value in params.items() if name != "rounds"}
    adapter = soba.TransCLIP(TEXT, logit_scale=SCALE, **given)
    expected = slow.transclip(STREAM[:80], text_of(adapter), SCALE, **params)
    check(chances(adapter.transduce(STREAM[:80], **rounds)), expected)


def test_transclip_parity_on_real_features():
    x, text = real(100)
    adapter = soba.TransCLIP(text)
    shares = chances(adapter.transduce(x))
    check(shares, slow.transclip(x, text_of(adapter), 100.0), 1e-5)


@pytest.mark.parametrize(("name", "score"), [("clip_rn50", 95.92), ("clip_vitb32", 90.35)])
def test_transclip_reaches_its_authors_figures(name, score):
    """On exactly these features, with the constants of the official code."""
    path = REAL_DATA / "whurs19" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    features = soba.FeatureSet.load(path)
    logits = soba.TransCLIP(features).transduce(features.image_features)
    assert 100 * (logits.argmax(axis=1) == features.labels).mean() == pytest.approx(score, abs=0.3)


# By hand --------------------------------------------------------------------------------------


def test_etta_by_hand():
    adapter = soba.ETTA(np.eye(2), logit_scale=10.0)
    [[one, two]] = adapter.adapt(np.array([[0.8, 0.6]]))
    sure, unsure = 1 / (1 + math.exp(-10.0)), 1 / (1 + math.exp(-2.0))
    doubts = [
        -sum(q * math.log(q) for q in (p + 1e-6, 1 - p + 1e-6)) for p in (sure, unsure)
    ]  # of the mean, cosines 1 and 0; of the text, cosines 0.8 and 0.6
    share = doubts[1] / sum(doubts)
    assert one == pytest.approx(10 * (share * 1.0 + (1 - share) * 0.8), rel=1e-5)
    assert two == pytest.approx(10 * (share * 0.0 + (1 - share) * 0.6), rel=1e-5)
    # The next of class 0 weighs exp(1.0) where the first weighed exp(0.8).
    adapter.adapt(np.array([[1.0, 0.0]]))
    mean = math.exp(0.8) * np.array([0.8, 0.6]) + math.exp(1.0) * np.array([1.0, 0.0])
    assert adapter.means_[0] == pytest.approx(mean / np.linalg.norm(mean), rel=1e-6)
    assert adapter.means_[1].tolist() == [0.0, 0.0]


def test_oga_by_hand():
    adapter = soba.OGA(np.eye(2), logit_scale=10.0, batch=2)
    first, second = adapter.adapt(np.array([[0.8, 0.6], [1.0, 0.0]]))
    assert first.tolist() == pytest.approx([8.0, 6.0])  # nothing is known yet
    # Two samples of class 0, divided by a capacity of 8; class 1 is its text; precision 2 I.
    mean = np.array([1.8, 0.6]) / 8
    gap = 10.0 + 0.05 * 2 * ((mean[0] - mean @ mean / 2) - (0.0 - 0.5))
    assert second[0] - second[1] == pytest.approx(gap, rel=1e-6)


def test_adapt_by_hand():
    adapter = soba.ADAPT(np.eye(2), logit_scale=10.0)
    f = np.array([0.8, 0.6])
    [[one, two]] = adapter.adapt(f[None])
    sure = 1 / (1 + math.exp(-2.0))
    mean = 0.9 * f + 0.1 * np.array([1.0, 0.0])  # one sample: its probability cancels
    evidence = -((f - mean) @ (f - mean)) / 2 + 20 / 2 * sure * 1.0
    other = -((f - [0.0, 1.0]) @ (f - [0.0, 1.0])) / 2
    assert one == pytest.approx(8.0, rel=1e-5)
    assert two == pytest.approx(6.0 * math.exp((other - evidence) / 20), rel=1e-5)


def test_dota_predicts_before_it_learns():
    f = np.array([[0.8, 0.6], [0.8, 0.6]])
    adapter = soba.DOTA(np.eye(2), logit_scale=10.0, refresh=1)
    first, second = adapter.adapt(f)
    # Precision 500, weight 0.005: nothing of the sample itself is in it.
    assert first[0] - first[1] == pytest.approx(2.0 + 0.005 * 500 * 0.2, rel=1e-5)
    sure = 1 / (1 + math.exp(-2.0))
    means = [(np.eye(2)[k] + p * f[0]) / (1 + p) for k, p in enumerate((sure, 1 - sure))]
    covariance = np.zeros((2, 2))
    for k, p in enumerate((sure, 1 - sure)):
        gap = f[0] - np.eye(2)[k]
        covariance += (0.002 * np.eye(2) + p * np.outer(gap, gap)) / (1 + p) / 2
    precision = np.linalg.inv((1 - 1e-4) * covariance + 1e-4 * np.eye(2))
    here = [-(f[0] - m) @ precision @ (f[0] - m) / 2 for m in means]
    gap = 2.0 + 0.005 * 1.5 * (here[0] - here[1])  # mean count: 1 + 1/2
    assert second[0] - second[1] == pytest.approx(gap, rel=1e-5)


def test_neighbours_carry_an_unsure_image_along():
    """Four of one kind, of which CLIP gets one wrong, and four of another."""
    kinds = np.array([[0.60, 0.5, 0.9]] * 4 + [[0.5, 0.9, -0.6]] * 4)
    features = kinds + 0.01 * np.random.default_rng(0).normal(size=kinds.shape)
    features[0, :2] = [0.54, 0.55]
    text = np.eye(3)[:2] + 0.01
    logits = soba.TransCLIP(text, logit_scale=10.0, confident=3).transduce(features)
    assert (
        soba.ZeroShot(text, logit_scale=10.0).predict(features).tolist() == [1, 0, 0, 0] + [1] * 4
    )
    assert logits.argmax(axis=1).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


# What they are --------------------------------------------------------------------------------


def test_the_neighbours_are_exact_whatever_the_blocks(monkeypatch):
    from soba.adapt import _neighbours

    rows = np.random.default_rng(0).normal(size=(97, 8))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    graphs = []
    for block in (1, 300, 1 << 22):
        monkeypatch.setattr(_neighbours, "_BLOCK_COSINES", block)
        monkeypatch.setattr(_neighbours.blocks, "__defaults__", (block,))
        graphs.append(_neighbours.Neighbours.of(rows, 4))
    cosines = rows @ rows.T - 9 * np.eye(97)
    chosen = np.sort(np.argsort(-cosines, axis=1)[:, :4], axis=1)
    matrix = np.zeros((97, 97))
    for i, others in enumerate(chosen):
        matrix[i, others] += cosines[i, others]
    for graph in graphs:
        dense = np.zeros((97, 97))
        begins = np.repeat(np.arange(97), np.diff(graph.starts))
        np.add.at(dense, (begins, graph.ends), graph.weights)
        np.testing.assert_allclose(dense, matrix + matrix.T, atol=1e-12)


def test_a_bank_is_the_same_in_any_order():
    order = np.random.default_rng(0).permutation(len(STREAM))
    for cls in (soba.ADAPT, soba.OGA):
        one, other = (cls(TEXT, logit_scale=SCALE) for _ in range(2))
        one.adapt(STREAM, ids=np.arange(len(STREAM)))
        other.adapt(STREAM[order], ids=order)
        assert one.queue.items().ids.tolist() == other.queue.items().ids.tolist()


@pytest.mark.parametrize("cls", [soba.ETTA, soba.DOTA, soba.PTA])
def test_sums_do_not_merge_and_start_over_under_other_text(cls):
    adapter = cls(TEXT, logit_scale=SCALE)
    adapter.adapt(STREAM)
    with pytest.raises(ValueError, match="keeps sums and no samples"):
        adapter.merge(cls(TEXT, logit_scale=SCALE))
    other = adapter.with_text(TEXT[:5])
    assert other.n_seen == 0
    fresh = cls(TEXT[:5], logit_scale=SCALE)
    assert np.array_equal(other.logits(STREAM), fresh.logits(STREAM))


def test_sums_are_those_of_the_set_in_any_order():
    order = np.random.default_rng(0).permutation(len(STREAM))
    one, other = (soba.ETTA(TEXT, logit_scale=SCALE) for _ in range(2))
    one.adapt(STREAM)
    other.adapt(STREAM[order])
    np.testing.assert_allclose(one.means_, other.means_, atol=1e-12)


@pytest.mark.parametrize(
    ("cls", "params", "message"),
    [
        (soba.OGA, {"batch": 0}, "batch must be a whole number"),
        (soba.OGA, {"tau": -1.0}, "tau must be positive"),
        (soba.OGA, {"capacity": None}, "capacity must be a whole number"),
        (soba.ADAPT, {"image_weight": 1.5}, "image_weight must be between 0 and 1"),
        (soba.ADAPT, {"sharpness": 0.0}, "sharpness must be positive"),
        (soba.DOTA, {"epsilon": 2.0}, "epsilon must be 1 at most"),
        (soba.DOTA, {"refresh": "tenths"}, "needs total="),
        (soba.TransCLIP, {"neighbours": -1}, "neighbours must be a whole number"),
        (soba.TransCLIP, {"confident": 0}, "confident must be a whole number"),
    ],
)
def test_parameters_are_checked(cls, params, message):
    with pytest.raises(ValueError, match=message):
        cls(TEXT, **params)


def test_adapt_settles_in_one_round():
    with pytest.raises(ValueError, match="rounds must be 1"):
        soba.ADAPT(TEXT).transduce(STREAM, rounds=2)


@pytest.mark.parametrize("cls", [soba.ADAPT, soba.TransCLIP])
def test_views_are_joined_before_a_set_is_seen(cls):
    views = np.repeat(STREAM[:, None, :], 10, axis=1)
    adapter = cls(TEXT, logit_scale=SCALE)
    logits, expected = adapter.transduce(views), adapter.transduce(STREAM)
    check(logits, expected, 1e-5)


@pytest.mark.parametrize("cls", [soba.ETTA, soba.DOTA])
def test_threads_lose_nothing_and_see_one_state(cls):
    adapter, whole = (cls(TEXT, logit_scale=SCALE) for _ in range(2))
    odd = []

    def learn(part):
        for row in range(part, len(STREAM), 4):
            adapter.adapt(STREAM[row], ids=[row])
            one, other = adapter.logits(np.repeat(STREAM[:1], 2, axis=0))
            if np.abs(one - other).max() > 1e-9:
                odd.append(row)

    threads = [threading.Thread(target=learn, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    whole.adapt(STREAM, ids=np.arange(len(STREAM)))
    assert adapter.n_seen == whole.n_seen == len(STREAM) and odd == []
    assert np.isfinite(adapter.logits(STREAM)).all()
    if cls is soba.ETTA:  # DOTA's covariances are around the means of their time
        np.testing.assert_allclose(adapter.means_, whole.means_, atol=1e-12)
    else:
        ours, theirs = adapter.state()["arrays"], whole.state()["arrays"]
        for name in ("counts", "sums"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9)


def test_damaged_sums_are_refused():
    for cls, name in ((soba.ETTA, "sums"), (soba.DOTA, "scatters"), (soba.PTA, "averages")):
        state = cls(TEXT, logit_scale=SCALE).state()
        state["arrays"][name] = state["arrays"][name][1:]
        with pytest.raises(ValueError, match=f"stored {name} have shape"):
            cls.from_state(state)
