"""SOBA+ on streams: what it gains, what it falls back to, what it forgets and how it explains."""

import itertools

import numpy as np
import pytest
from conftest import REAL_DATA
from rounding import assert_same_logits

import soba
from soba.adapt.soba_plus import SOBAPlus
from soba.testing import assert_same_state, example_stream

FEATURES, LABELS, TEXT = example_stream(n=400, classes=6, width=20, seed=7)


def right(logits, labels):
    return 100.0 * (logits.argmax(axis=-1) == labels).mean()


def gain_online(features, labels, text, name="soba+", **options):
    """Points above CLIP, each image scored when it comes."""
    zero_shot = soba.ZeroShot(text, **options).logits(features)
    adapted = soba.create_adapter(name, text, **options).adapt(features)
    return right(adapted, labels) - right(zero_shot, labels)


def test_it_gains_on_the_example_streams():
    gains = []
    for seed in range(10):
        features, labels, text = example_stream(n=400, seed=seed)
        gains.append(gain_online(features, labels, text, logit_scale=20.0))
    assert np.mean(gains) > 2.0
    assert min(gains) > -0.5


def test_until_the_first_refresh_it_is_clip():
    adapter, clip = SOBAPlus(TEXT, logit_scale=15.0), soba.ZeroShot(TEXT, logit_scale=15.0)
    expected, first = clip.logits(FEATURES), adapter._schedule.next_after(0)
    assert_same_logits(adapter.logits(FEATURES), expected)
    for at in range(first - 1):
        assert_same_logits(adapter.adapt(FEATURES[at : at + 3])[:1], expected[at : at + 1])
        adapter.reset().learn(FEATURES[: at + 1])
    assert adapter.statistics_ is None
    answer = adapter.adapt(FEATURES[first - 1])  # what a refresh falls on is scored after it
    assert adapter.statistics_ is not None
    assert np.array_equal(answer, adapter.logits(FEATURES[first - 1]))
    assert np.abs(answer - expected[first - 1]).max() > 1e-4


def test_without_scatter_within_a_class_it_is_clip():
    copies = SOBAPlus(TEXT, refresh=1)
    copies.adapt(np.repeat(TEXT[:1], 9, axis=0))
    single = SOBAPlus(np.eye(4), refresh=1)
    single.adapt(np.eye(4)[:3])  # one image a class
    for adapter in (copies, single):
        assert adapter.statistics_ is None and adapter.n_seen > 2


@pytest.mark.parametrize("options", [{}, {"horizon": 90}, {"refresh": 7}, {"sample_size": 30}])
def test_however_a_stream_is_cut(options):
    """Refreshes fall where they are due, so the cut into calls changes nothing."""
    whole = SOBAPlus(TEXT, logit_scale=15.0, **options)
    expected = whole.adapt(FEATURES)
    for cuts in (range(1, 400), [13, 16, 17, 200]):
        adapter = SOBAPlus(TEXT, logit_scale=15.0, **options)
        parts = [
            adapter.adapt(FEATURES[a:b]) for a, b in itertools.pairwise([0, *cuts, 400]) if a < b
        ]
        assert_same_logits(np.concatenate(parts), expected)
        for name in ("ids", "places"):
            assert np.array_equal(getattr(adapter.sample, name), getattr(whole.sample, name))


def test_an_explanation_adds_up():
    adapter = SOBAPlus(TEXT, logit_scale=15.0)
    before = adapter.explain(FEATURES[0])
    assert np.array_equal(before.images, np.zeros(6)) and np.array_equal(before.prior, np.zeros(6))
    assert before.expected_accuracy is None
    np.testing.assert_allclose(before.logits, adapter.logits(FEATURES[0]), rtol=1e-5)
    adapter.adapt(FEATURES)
    state = adapter.refresh().state()
    for row in FEATURES[:40]:
        told = adapter.explain(row)
        np.testing.assert_allclose(told.logits, told.clip + told.images + told.prior)
        np.testing.assert_allclose(told.logits, adapter.logits(row), atol=1e-4)
        np.testing.assert_allclose(told.probabilities, adapter.probabilities(row), atol=1e-5)
        assert told.images.max() <= 0.0  # a log-likelihood, weighed
        assert told.images.min() < 0.0
    assert told.mass.shape == (6,)
    assert told.mass.sum() == pytest.approx(400, rel=0.01)
    assert told.text_worth > 0
    assert told.expected_accuracy == adapter.expected_accuracy()
    assert_same_state(adapter.state(), state)
    loaded = SOBAPlus.from_state(state)
    np.testing.assert_allclose(
        loaded.explain(FEATURES[3]).images, adapter.explain(FEATURES[3]).images
    )
    with pytest.raises(ValueError, match="one sample"):
        adapter.explain(FEATURES[:2])


def test_a_prior_is_believed_where_it_predicts():
    """It counts where part of the classes come, and hardly where they come one after the other."""
    for seed in range(3):
        features, labels, text = example_stream(n=400, classes=24, width=32, seed=seed)
        few = np.isin(labels, range(6))
        adapter = SOBAPlus(text, logit_scale=20.0)
        adapter.adapt(features[few])
        doubtful = features[few][np.argmax([adapter.explain(f).doubt for f in features[few]])]
        prior = adapter.explain(doubtful).prior
        assert prior[:6].mean() > prior[6:].mean()
        in_order = SOBAPlus(text, logit_scale=20.0)
        in_order.adapt(features[np.argsort(labels, kind="stable")])
        sorted_prior = in_order.explain(doubtful).prior
        assert np.ptp(sorted_prior) < 0.2 * np.ptp(prior)


# The horizon -------------------------------------------------------------------------------------


def test_a_horizon_forgets():
    adapter = SOBAPlus(TEXT, horizon=100)
    for start in range(0, 400, 7):
        part = FEATURES[start : start + 7]
        adapter.adapt(part, ids=np.arange(start, start + len(part)))
        seen, ids = adapter.n_seen, adapter.sample.ids
        assert ids.min() >= seen - 100
        assert len(ids) >= min(seen, 50)
    never = SOBAPlus(TEXT)
    never.adapt(FEATURES, ids=np.arange(400))
    assert never.sample.ids.min() < 100
    for horizon in (0, 1, 2.5, "long", True):
        with pytest.raises(ValueError, match="horizon"):
            SOBAPlus(TEXT, horizon=horizon)


def test_adapters_with_a_horizon_do_not_merge():
    """Shards have no common time: a merge would count samples twice, and forget the wrong ones."""

    def learned(rows):
        adapter = SOBAPlus(TEXT, horizon=100)
        adapter.adapt(FEATURES[rows], ids=rows)
        return adapter

    one = learned(np.arange(70))
    before = one.state()
    for other in (one, one.copy(), learned(np.arange(70, 120)), SOBAPlus(TEXT, horizon=100)):
        with pytest.raises(ValueError, match=r"horizon \(100\): shards have no common time"):
            one.merge(other)
    assert_same_state(one.state(), before)


def test_a_generation_keeps_its_age_under_other_text():
    adapter = SOBAPlus(TEXT, horizon=100)
    adapter.adapt(FEATURES[:80], ids=np.arange(80))  # 50 in the older generation, 30 in the younger
    renamed = adapter.with_text(TEXT[::-1].copy())
    for one in (adapter, renamed):
        one.adapt(FEATURES[80:99], ids=np.arange(80, 99))
        younger, older = (one._samples[name].items().ids for name in ("sample", "older_sample"))
        assert sorted(younger) == list(range(50, 99)) and sorted(older) == list(range(50))
        one.adapt(FEATURES[99:100], ids=[99])
        assert sorted(one.sample.ids) == list(range(50, 100))
        assert len(one._samples["sample"]) == 0


# When it refreshes, and what it answers -----------------------------------------------------------


@pytest.mark.parametrize(("classes", "boundaries"), [(6, [16, 20, 25]), (256, [128, 160, 200])])
def test_it_refreshes_as_evidence_grows(classes, boundaries):
    adapter = SOBAPlus(np.eye(classes, dtype=np.float32))
    assert adapter._schedule.boundaries(boundaries[-1]) == boundaries


def test_max_gap_refreshes_often():
    boundaries = SOBAPlus(TEXT, max_gap=20)._schedule.boundaries(1000)
    assert max(np.diff(boundaries)) == 20
    assert max(np.diff(SOBAPlus(TEXT, horizon=240)._schedule.boundaries(1000))) == 10


def test_decide_abstains():
    adapter = SOBAPlus(TEXT, logit_scale=15.0)
    adapter.adapt(FEATURES)
    probabilities = adapter.probabilities(FEATURES)
    decided = adapter.predict(FEATURES, min_confidence=0.7)
    sure = probabilities.max(axis=1) >= 0.7
    assert sure.any() and not sure.all()
    assert np.array_equal(decided, np.where(sure, probabilities.argmax(axis=1), -1))
    assert adapter.predict(FEATURES[0]) == probabilities[0].argmax()
    with pytest.raises(ValueError, match="min_confidence"):
        adapter.predict(FEATURES, min_confidence=70)


# Real features -----------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 1e-4, 3e-3, 0.02])
def test_repeated_frames_do_no_harm(whurs19, noise):
    """A camera that stands still: few images, many near-copies of each."""
    features = soba.FeatureSet.load(whurs19)
    images = features.image_features.astype(np.float32)
    gains = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        frames = np.repeat(images[rng.permutation(len(images))[:8]], 5, axis=0)
        frames = frames + noise * rng.normal(size=frames.shape).astype(np.float32)
        adapter = SOBAPlus(features.text_features)
        adapter.adapt(frames)
        clip = soba.ZeroShot(features.text_features).logits(images)
        gains.append(right(adapter.logits(images), features.labels) - right(clip, features.labels))
        assert np.abs(adapter.logits(images)).max() < 100.0
    assert np.mean(gains) >= -1e-9  # sums of percents round


def orders(labels, seed):
    """A set as a stream: shuffled, sorted by class, and of a quarter of its classes."""
    rng = np.random.default_rng(seed)
    shuffled, classes = rng.permutation(len(labels)), rng.permutation(np.unique(labels))
    rank = np.argsort(classes)[labels[shuffled]]
    yield "shuffled", shuffled
    yield "sorted", shuffled[np.argsort(rank, kind="stable")]
    yield "quarter", shuffled[rank < round(len(classes) / 4)]


def real_features(name):
    path = REAL_DATA / "whurs19" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    return soba.FeatureSet.load(path)


@pytest.mark.parametrize(
    "encoder", [pytest.param("clip_rn50", marks=pytest.mark.long), "clip_vitb32"]
)
def test_it_gains_on_real_streams_and_more_than_tda_and_soba(encoder):
    features = real_features(encoder)
    images, labels = features.image_features.astype(np.float32), np.asarray(features.labels)
    gains = {}
    for seed in range(3):
        for regime, rows in orders(labels, seed):
            for name in ("soba+", "soba", "tda"):
                gain = gain_online(images[rows], labels[rows], features.text_features, name)
                gains.setdefault((name, regime), []).append(gain)
    for (name, regime), scored in gains.items():
        assert name != "soba+" or np.mean(scored) > -1.0, regime
    average = {
        name: np.mean([g for (n, _), g in gains.items() if n == name])
        for name in ("soba+", "soba", "tda")
    }
    assert average["soba+"] > max(average["soba"], average["tda"])


def test_a_horizon_costs_little_where_nothing_changes():
    features = real_features("clip_vitb32")
    images, labels = features.image_features.astype(np.float32), np.asarray(features.labels)
    gains = {None: [], 800: []}
    for seed in range(3):
        rows = np.random.default_rng(seed).permutation(len(labels))
        for horizon, scored in gains.items():
            adapter = SOBAPlus(features.text_features, horizon=horizon)
            scored.append(right(adapter.adapt(images[rows])[500:], labels[rows][500:]))
    assert np.mean(gains[800]) >= np.mean(gains[None]) - 1.0
