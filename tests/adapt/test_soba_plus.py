from unittest import mock

import numpy as np
import pytest
from conftest import REAL_DATA
from rounding import assert_same_logits
from soba_plus_reference import Reference, softmax

import soba
from soba.adapt import _evidence
from soba.adapt._arrays import read_batch
from soba.adapt._evidence import candidate_type
from soba.adapt._temperature import temperature_for
from soba.adapt.soba_plus import SOBAPlus
from soba.testing import assert_same_state, example_stream

FEATURES, LABELS, TEXT = example_stream(n=400, classes=6, width=20, seed=7)


@pytest.mark.parametrize(
    ("n", "scale", "size"), [(18, 15.0, 512), (60, 15.0, 512), (400, 15.0, 100), (400, 60.0, 512)]
)
def test_equals_the_formulas(n, scale, size):
    adapter = SOBAPlus(TEXT, logit_scale=scale, refresh=n, sample_size=size)
    adapter.adapt(FEATURES[:n])
    items, drawn = adapter.queue.items(), adapter._samples["sample"].items()
    reference = Reference(
        items.features.astype(float), items.labels, drawn.features.astype(float), TEXT, scale
    )
    rows = np.concatenate([FEATURES, TEXT, -FEATURES[:9]])  # some are like nothing that was seen
    # So early the Gaussians are hardly told apart, and scores are differences of large numbers.
    assert_same_logits(
        adapter.logits(rows), reference.logits(rows), tolerance=2e-4 if n == 400 else 1e-3
    )
    told = adapter.expected_accuracy()
    np.testing.assert_allclose((told.zero_shot, told.adapted), reference.expected, atol=1e-4)
    if n == 400:  # what the test is about takes part
        assert len(drawn.ids) == min(size, 400)
        assert (reference.spread != 1.0) == (scale == 60.0)  # there CLIP is surer than borne out
        assert reference.T > 1.0
        assert (np.exp(items.extra.view(candidate_type(6))["log_prob"][:, 0, 0]) < 0.9).any()


def test_what_is_not_known_falls_back_to_clip():
    zero_shot = soba.ZeroShot(TEXT).logits(FEATURES)
    assert_same_logits(SOBAPlus(TEXT).logits(FEATURES), zero_shot)
    one_class = SOBAPlus(TEXT, refresh=1)
    one_class.adapt(np.repeat(TEXT[:1], 9, axis=0))
    assert one_class.statistics_ is None
    single = SOBAPlus(np.eye(4), refresh=1)
    single.adapt(np.eye(4)[:3])  # one sample a class: no scatter
    assert single.statistics_ is None


def test_explanation_adds_up():
    adapter = SOBAPlus(TEXT, logit_scale=15.0)
    before = adapter.explain(FEATURES[0])
    assert np.array_equal(before.queue, np.zeros(6))
    assert before.expected_accuracy is None
    np.testing.assert_allclose(before.logits, adapter.logits(FEATURES[0]), rtol=1e-5)
    adapter.adapt(FEATURES)
    state = adapter.state()
    weights = []
    for row in FEATURES[:40]:
        told = adapter.explain(row)
        np.testing.assert_allclose(told.logits, adapter.logits(row), atol=1e-4)
        np.testing.assert_allclose(told.probabilities, adapter.probabilities(row), atol=1e-5)
        weights.append(told.weight)
        if told.weight > 0.1:
            assert np.abs(told.queue).max() > 0.01
            assert np.abs(told.text).max() > 0.001
        # What is unlike all that was seen is CLIP's to answer.
        assert (told.weight > 0.0) == (np.abs(told.queue).max() > 0.0)
    assert np.mean(weights) > 0.3
    assert min(weights) == 0.0
    assert told.samples.shape == (6,)
    assert 0 < told.samples.sum() <= 400
    assert told.text_worth > 0
    assert told.expected_accuracy == adapter.expected_accuracy()
    loaded = SOBAPlus.from_state(state)
    np.testing.assert_allclose(
        loaded.explain(FEATURES[3]).queue, adapter.explain(FEATURES[3]).queue
    )
    with pytest.raises(ValueError, match="one sample"):
        adapter.explain(FEATURES[:2])


def test_more_samples_of_a_class_move_weight_from_text_to_queue():
    shares = []
    for n in (40, 400):
        adapter = SOBAPlus(TEXT, logit_scale=15.0, refresh=n)
        adapter.adapt(FEATURES[:n])
        told = adapter.explain(FEATURES[0])
        shares.append((told.samples / (told.samples + told.text_worth)).mean())
    assert shares[1] > shares[0]


def test_horizon_forgets():
    adapter = SOBAPlus(TEXT, horizon=100)
    for start in range(0, 400, 7):
        part = FEATURES[start : start + 7]
        adapter.adapt(part, ids=np.arange(start, start + len(part)))
        seen = adapter.n_seen
        ids = np.concatenate([queue.items().ids for queue in adapter._queues.values()])
        assert ids.min() >= seen - 100
        assert (ids >= seen - 50).any() or seen % 50 < 7
    never = SOBAPlus(TEXT)
    never.adapt(FEATURES, ids=np.arange(400))
    assert never.queue.items().ids.min() < 100
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
        ages = [queue.items().ids for queue in one._queues.values()]
        assert ages[0].min() >= 50 and ages[1].max() < 50
        one.adapt(FEATURES[99:100], ids=[99])
        assert one._queues["older"].items().ids.min() >= 50 and len(one.queue) == 0


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
        right = adapter.logits(images).argmax(1) == features.labels
        clip = soba.ZeroShot(features.text_features).logits(images).argmax(1) == features.labels
        gains.append(100.0 * (right.mean() - clip.mean()))
        assert np.abs(adapter.logits(images)).max() < 100.0
    assert np.mean(gains) >= 0.0


@pytest.mark.parametrize(("classes", "boundaries"), [(256, [128, 160, 200]), (257, [128, 205])])
def test_statistics_refresh_more_rarely_where_classes_are_many(classes, boundaries):
    adapter = SOBAPlus(np.eye(classes, dtype=np.float32))
    assert adapter._schedule.boundaries(210) == boundaries


def test_max_gap_refreshes_often():
    boundaries = SOBAPlus(TEXT, max_gap=20)._schedule.boundaries(1000)
    assert max(np.diff(boundaries)) == 20
    assert max(np.diff(SOBAPlus(TEXT, horizon=240)._schedule.boundaries(1000))) == 10


def test_temperature_for():
    rng = np.random.default_rng(0)
    logits = 3.0 * rng.normal(size=(200, 10))
    for confidence in (0.3, 0.5, 0.6):
        T = temperature_for(logits, confidence)
        assert T > 1.0
        assert softmax(logits / T).max(1).mean() == pytest.approx(confidence, abs=1e-6)
    assert temperature_for(logits, 0.99) == 1.0  # never sharpens
    assert temperature_for(1000.0 * logits, 0.2) == 16.0


def test_decide_abstains():
    adapter = SOBAPlus(TEXT, logit_scale=15.0)
    adapter.adapt(FEATURES)
    probabilities = adapter.probabilities(FEATURES)
    decided = adapter.predict(FEATURES, min_confidence=0.7)
    sure = probabilities.max(1) >= 0.7
    assert 0 < sure.sum() < 400
    assert (decided[~sure] == -1).all()
    assert np.array_equal(decided[sure], probabilities.argmax(1)[sure])
    assert np.array_equal(adapter.predict(FEATURES), probabilities.argmax(1))
    assert adapter.predict(FEATURES[0]) == probabilities[0].argmax()
    with pytest.raises(ValueError, match="min_confidence"):
        adapter.predict(FEATURES, min_confidence=70)


def real_features(name):
    path = REAL_DATA / "whurs19" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    return soba.FeatureSet.load(path)


@pytest.mark.parametrize(
    ("name", "least", "gain", "in_order"),
    [
        pytest.param("clip_rn50", 89.6, 9.9, 5.8, marks=pytest.mark.long),
        ("clip_vitb32", 89.6, 5.5, 2.3),
    ],
)
def test_the_bound_on_harm_and_the_gains(name, least, gain, in_order):
    """Every stress scenario, on real features: the figures of the docs."""
    from soba.studies.stress import stress, summarise

    features = real_features(name)
    rows = summarise(stress(features, ["zero-shot", "tda", "soba", "soba+"]))
    cells = {(row["scenario"], row["method"]): row for row in rows}
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    for scenario in scenarios:
        ours, clip = cells[scenario, "soba+"], cells[scenario, "zero-shot"]
        few = ours["scored"] < 500
        assert ours["gain"] >= (-0.6 if few else -0.3), scenario
        if scenario != "wrong text":
            extra = ours["calibration_error"] - clip["calibration_error"]
            assert extra <= (1.5 if few else 0.5), scenario
    average = {
        m: np.mean([cells[s, m]["gain"] for s in scenarios]) for m in ("tda", "soba", "soba+")
    }
    assert average["soba+"] > max(average["tda"], average["soba"])
    assert cells["all", "soba+"]["accuracy_mean"] >= least
    assert average["soba+"] >= gain
    assert cells["sorted by class", "soba+"]["gain"] >= in_order


@pytest.mark.parametrize(
    ("name", "least"),
    [pytest.param("clip_rn50", 90.7, marks=pytest.mark.long), ("clip_vitb32", 91.4)],
)
def test_a_horizon_after_a_shift(name, least):
    """On the second half, behind the change: what a horizon costs in evidence is little.

    This shift hardly troubles SOBA+, so forgetting has nothing to gain here: measured 91.89 against
    92.37 without a horizon (RN50).
    """
    from soba.studies.scenarios import build
    from soba.studies.stress import run_one

    features = real_features(name)
    scores = {None: [], 800: []}
    for seed in range(5):
        stream = build("shift", features, seed)
        for horizon, halves in scores.items():
            record = run_one(SOBAPlus(stream.text_features, horizon=horizon), stream)
            halves.append(record["second_half"])
    assert np.mean(scores[800]) >= np.mean(scores[None]) - 0.6
    assert np.mean(scores[800]) >= least


def test_text_that_points_the_wrong_way_is_left_out():
    """Class means that fall where the text rises: the slope of means on text is floored at 0."""
    rng = np.random.default_rng(0)
    words, labels = np.linalg.qr(rng.normal(size=(24, 24)))[0][:6], np.arange(240) % 6
    away = np.ones(24) / 24**0.5  # a cone, as CLIP's, with the classes on the far side of it
    stream = 3.0 * away - words[labels] + 0.05 * rng.normal(size=(240, 24))
    text = away * 0.1 + words
    # Pseudo-labels come from the text, so give the queue what CLIP could not.
    adapter = SOBAPlus(text, refresh=240)
    clip = adapter._clip(read_batch(stream, 24))
    clip.labels[:] = labels
    adapter._learn(clip, np.arange(240), np.arange(240))
    with mock.patch.object(_evidence, "EM_WEIGHT", 1e6):  # EM would follow the text
        adapter._settle()
    assert adapter.statistics_["model"][0] == 0.0
    for row in stream[:12]:
        assert np.array_equal(adapter.explain(row).text, np.zeros(6))
