"""SOBA+ on whole sets: rounds, blocks and shards, what must not matter, and bad input."""

import tracemalloc
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import REAL_DATA
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import assert_same_logits

import soba
from soba.adapt._arrays import read_batch
from soba.adapt.soba_plus import transduce as transduction
from soba.adapt.soba_plus.model import Shares
from soba.adapt.soba_plus.transduce import EMModel, EMStatistics, em_fit, em_statistics, em_update
from soba.testing import assert_same_state, example_stream

IMAGES, LABELS, TEXT = example_stream(n=240, classes=6, width=20, seed=7)
SCALE = 15.0
ADAPTER = soba.SOBAPlus(TEXT, logit_scale=SCALE)
SCALED = ADAPTER._scaled_text


def zero_shot(images, text=TEXT):
    return SCALE * images @ text.T


def summed(blocks, model):
    return transduction.sum_up((read_batch(block, 20) for block in blocks), model)


def blocks_of(rows):
    """Cuts everything into blocks of so many rows, for as long as it is entered."""
    return mock.patch.object(transduction._Rows, "__init__", _with_step(rows))


def _with_step(rows, init=transduction._Rows.__init__):
    def initialised(self, *arguments):
        init(self, *arguments)
        self._step = rows

    return initialised


# Rounds -------------------------------------------------------------------------------------------


def test_no_round_is_clip_and_rounds_gain():
    assert_same_logits(ADAPTER.transduce(IMAGES, rounds=0), zero_shot(IMAGES))
    plain = (zero_shot(IMAGES).argmax(axis=1) == LABELS).mean()
    ours = (ADAPTER.transduce(IMAGES).argmax(axis=1) == LABELS).mean()
    assert ours > plain + 0.02


def test_it_fits_as_often_as_it_is_asked_to():
    for images, asked, rounds in ((IMAGES, 3, 3), (IMAGES, 1, 1), (IMAGES[[0] * 50], 3, 1)):
        with mock.patch.object(transduction, "em_update", wraps=em_update) as update:
            ADAPTER.transduce(images, rounds=asked)
        assert update.call_count == rounds  # without scatter there is nothing to go on with


# Blocks, shards, orders --------------------------------------------------------------------------


@settings(max_examples=25)
@given(rows=st.integers(1, 240), seed=st.integers(0, 10))
def test_any_order_and_any_cut_agree(rows, seed):
    order = np.random.default_rng(seed).permutation(len(IMAGES))
    with blocks_of(rows):
        ours = ADAPTER.transduce(IMAGES[order])
    assert_same_logits(ours, ADAPTER.transduce(IMAGES)[order])


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, 239), max_size=6), later=st.booleans())
def test_statistics_add(cuts, later):
    model = em_fit(SCALED, IMAGES, rounds=2) if later else EMModel(SCALED)
    parts = np.split(IMAGES, sorted(set(cuts)))
    ours, whole = summed(parts, model), summed([IMAGES], model)
    assert ours.count == whole.count == 240
    assert (whole.second_moments is None) == later
    for mine, theirs, names in (
        (ours.shares, whole.shares, ("mass", "squares", "sums")),
        (ours, whole, ("sure", "agreement", *(() if later else ("second_moments",)))),
    ):
        for name in names:
            a, b = getattr(mine, name), getattr(theirs, name)
            assert a.dtype == b.dtype == np.float64
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_statistics_are_sums_over_images():
    """Image by image, in loops: shares, their squares, and what CLIP is sure of."""
    images = IMAGES[:30].astype(float)
    statistics = summed([IMAGES[:30]], EMModel(SCALED))
    mass, squares, sure, agree = np.zeros(6), np.zeros(6), np.zeros((2, 6)), 0.0
    sums, moments = np.zeros((6, 20)), np.zeros((20, 20))
    for f in images:
        z = SCALED.astype(float) @ f
        p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
        mass += p
        squares += p**2
        counted = (1 - sum(-x * np.log(x) for x in p) / np.log(6)) * p
        sure += np.stack([counted, counted**2])
        agree += sum(p**2)
        sums += np.outer(p, f)
        moments += np.outer(f, f)
    for ours, expected in (
        (statistics.shares.mass, mass),
        (statistics.shares.squares, squares),
        (statistics.shares.sums, sums),
        (statistics.second_moments, moments),
        (statistics.sure, sure),
        (statistics.agreement, [agree, agree]),  # the model is CLIP, so it agrees with itself
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def test_shards_mapped_and_added_are_transduction():
    """What a cluster does, with the public pieces alone."""
    model = EMModel(SCALED)
    for _ in range(4):
        parts = [em_statistics(read_batch(s, 20), model) for s in np.array_split(IMAGES, 7)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        model = em_update(total, model)
    ours = model.logits(read_batch(IMAGES, 20))
    assert_same_logits(ours, ADAPTER.transduce(IMAGES, rounds=4))


def test_the_same_blocks_give_the_same_bits():
    np.testing.assert_array_equal(ADAPTER.transduce(IMAGES), ADAPTER.transduce(IMAGES))


def test_statistics_of_two_models_do_not_add():
    first, later = EMModel(SCALED), em_fit(SCALED, IMAGES, rounds=1)
    one, other = summed([IMAGES], first), summed([IMAGES], later)
    for a, b in ((one, other), (other, one)):
        with pytest.raises(ValueError, match="under one model"):
            a + b
    with pytest.raises(ValueError, match="scatter"):
        em_update(other, first)


def test_memory_does_not_grow_with_the_set(tmp_path):
    """Features and logits on disk: 12 times the images, the same peak."""
    classes, width = 200, 32
    rng = np.random.default_rng(0)
    text = rng.normal(size=(classes, width)).astype(np.float32)
    adapter = soba.SOBAPlus(text, logit_scale=20.0)
    peaks = []
    for n in (10_000, 120_000):
        kept = np.lib.format.open_memmap(tmp_path / f"{n}.npy", "w+", np.float16, (n, width))
        kept[:] = text[rng.integers(classes, size=n)] + rng.normal(size=(n, width))
        out = np.lib.format.open_memmap(tmp_path / f"out{n}.npy", "w+", np.float32, (n, classes))
        tracemalloc.start()
        assert adapter.transduce(kept, rounds=2, out=out) is out
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert np.isfinite(out[-1]).all() and out[-1].any()
    assert peaks[1] < 1.05 * peaks[0]
    assert peaks[1] < 120_000 * classes * 4 / 2


# What must not matter ----------------------------------------------------------------------------


def test_zero_columns_and_rotations_change_no_answer():
    expected = ADAPTER.transduce(IMAGES)
    wide = [np.pad(rows, ((0, 0), (0, 60))) for rows in (IMAGES, TEXT)]
    assert_same_logits(soba.SOBAPlus(wide[1], logit_scale=SCALE).transduce(wide[0]), expected)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 20)))[0]
    turned = [(rows @ turn).astype(np.float32) for rows in (IMAGES, TEXT)]
    ours = soba.SOBAPlus(turned[1], logit_scale=SCALE).transduce(turned[0])
    assert_same_logits(ours, expected, tolerance=1e-4)


def test_lengths_do_not_matter_and_classes_may_be_renamed():
    lengths = np.random.default_rng(0).uniform(0.1, 9.0, (240, 1)).astype(np.float32)
    expected = ADAPTER.transduce(IMAGES)
    assert_same_logits(ADAPTER.transduce(IMAGES * lengths), expected)
    order = np.random.default_rng(1).permutation(6)
    renamed = soba.SOBAPlus(TEXT[order], logit_scale=SCALE).transduce(IMAGES)
    assert_same_logits(renamed, expected[:, order])


def test_the_adapter_is_not_touched_and_does_not_matter():
    adapter = soba.SOBAPlus(TEXT, logit_scale=SCALE)
    adapter.adapt(IMAGES[:100])
    before = adapter.state()
    ours = adapter.transduce(IMAGES)
    assert_same_state(adapter.state(), before)
    np.testing.assert_array_equal(ours, ADAPTER.transduce(IMAGES))


# Little, odd and wrong input ---------------------------------------------------------------------


def test_one_image_and_copies_of_it_are_clips():
    for images in (IMAGES[:1], np.repeat(IMAGES[:1], 50, axis=0)):
        assert_same_logits(ADAPTER.transduce(images), zero_shot(images))
    with pytest.raises(ValueError, match="takes a set"):
        ADAPTER.transduce(IMAGES[0])


def test_copies_that_rounded_have_no_scatter():
    rng = np.random.default_rng(0)
    images = np.repeat(IMAGES[:1], 50, axis=0) + 1e-5 * rng.normal(size=(50, 20))
    assert em_fit(SCALED, images).gaussians is None
    assert em_fit(SCALED, images + 0.1 * rng.normal(size=(50, 20))).gaussians is not None


def test_no_image_and_one_class():
    assert ADAPTER.transduce(IMAGES[:0]).shape == (0, 6)
    alone = soba.SOBAPlus(TEXT[:1], logit_scale=SCALE)
    np.testing.assert_allclose(
        alone.transduce(IMAGES), zero_shot(IMAGES, TEXT[:1]), rtol=1e-5, atol=1e-5
    )


def test_copies_of_the_set_change_little():
    ours = ADAPTER.transduce(np.concatenate([IMAGES, IMAGES]))
    np.testing.assert_allclose(ours[:240], ours[240:], rtol=0, atol=1e-3)
    agree = (ours[:240].argmax(axis=1) == ADAPTER.transduce(IMAGES).argmax(axis=1)).mean()
    assert agree > 0.97


def test_classes_without_images_take_fewer_than_clip_gives_them():
    rng = np.random.default_rng(3)
    others = rng.normal(size=(18, 20)).astype(np.float32)
    text = np.concatenate([TEXT, others])
    ours = soba.SOBAPlus(text, logit_scale=SCALE).transduce(IMAGES).argmax(axis=1)
    plain = (IMAGES @ soba.SOBAPlus(text).text_features.T).argmax(axis=1)
    assert (ours >= 6).sum() < (plain >= 6).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_tensors_in_tensors_out(dtype):
    given = torch.from_numpy(IMAGES).to(dtype)
    ours = ADAPTER.transduce(given)
    assert isinstance(ours, torch.Tensor)
    assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = ADAPTER.transduce(given.numpy())
    assert_same_logits(ours.numpy(), expected, tolerance=1e-4)
    out = torch.empty((240, 6))
    assert ADAPTER.transduce(given, out=out) is out
    np.testing.assert_allclose(out.numpy(), ours.numpy(), rtol=1e-5, atol=1e-5)


def test_out_takes_the_logits():
    out = np.full((240, 6), np.nan)
    assert ADAPTER.transduce(IMAGES, out=out) is out
    np.testing.assert_array_equal(out, ADAPTER.transduce(IMAGES))
    with pytest.raises(ValueError, match=r"out must have shape \(240, 6\), not \(240, 5\)"):
        ADAPTER.transduce(IMAGES, out=out[:, :5])


def test_views_are_joined_as_elsewhere():
    views = np.stack([IMAGES, IMAGES], axis=1)
    assert_same_logits(ADAPTER.transduce(views), ADAPTER.transduce(IMAGES))


@pytest.mark.parametrize(
    ("images", "error", "what"),
    [
        (IMAGES[:, :7], ValueError, "7 dimensions where the text features have 20"),
        (np.zeros((3, 20), np.int64), TypeError, "floating point"),
        (IMAGES[None, None], ValueError, "must have shape"),
        (np.where(np.arange(240)[:, None] == 201, np.nan, IMAGES), ValueError, "row 201 holds NaN"),
        (np.where(np.arange(240)[:, None] == 3, 0.0, IMAGES), ValueError, "row 3 is all zeros"),
    ],
)
def test_bad_features_say_what_is_wrong(images, error, what):
    with pytest.raises(error, match=what):
        ADAPTER.transduce(images)


def test_bad_rows_of_later_blocks_are_counted_from_there():
    images = IMAGES.copy()
    images[201] = 0.0
    with blocks_of(100), pytest.raises(ValueError, match=r"row 1 .*counted from row 200"):
        ADAPTER.transduce(images)


@pytest.mark.parametrize("rounds", [-1, 2.5, "3"])
def test_bad_rounds_say_so(rounds):
    with pytest.raises((TypeError, ValueError), match="rounds"):
        ADAPTER.transduce(IMAGES, rounds=rounds)


def test_nothing_to_go_by_is_plain_clip():
    shares = Shares(np.zeros(6), np.zeros(6), np.zeros((6, 20)))
    nothing = EMStatistics(0, shares, np.zeros((2, 6)), np.zeros(2), np.zeros((20, 20)))
    assert em_update(nothing, EMModel(SCALED)).gaussians is None


# Real features -----------------------------------------------------------------------------------


def real(name):
    path = REAL_DATA / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no real features at {path}; set SOBA_REAL_DATA")
    return soba.FeatureSet.load(path)


@pytest.mark.parametrize("name", ["whurs19/clip_rn50", "whurs19/clip_vitb32", "cars/clip_vitb32"])
def test_a_whole_set_gains_and_more_than_a_stream(name):
    feature_set = real(name)
    images, labels = np.asarray(feature_set.image_features), np.asarray(feature_set.labels)
    rows = np.random.default_rng(0).permutation(len(images))
    adapter = soba.SOBAPlus(feature_set)
    plain, whole = (
        100 * (logits.argmax(axis=1) == labels).mean()
        for logits in (adapter.transduce(images, rounds=0), adapter.transduce(images))
    )
    online = 100 * (adapter.adapt(images[rows]).argmax(axis=1) == labels[rows]).mean()
    assert whole > max(plain + 2.0, online - 0.3)


@pytest.mark.parametrize("name", ["photo_vitb16", "art_painting_vitb16", "cartoon_vitb16"])
def test_it_does_no_harm_where_clip_is_right(name):
    feature_set = real(f"pacs/{name}")
    adapter, images = soba.SOBAPlus(feature_set), feature_set.image_features
    plain, whole = (
        100 * (logits.argmax(axis=1) == feature_set.labels).mean()
        for logits in (adapter.transduce(images, rounds=0), adapter.transduce(images))
    )
    assert whole >= plain - 0.3


@pytest.mark.parametrize("name", ["whurs19/clip_rn50", "whurs19/clip_vitb32", "cars/clip_vitb32"])
def test_a_quarter_of_the_classes_does_no_harm(name):
    feature_set = real(name)
    labels, adapter = np.asarray(feature_set.labels), soba.SOBAPlus(feature_set)
    for seed in range(2):
        classes = np.random.default_rng(seed).permutation(np.unique(labels))
        rows = np.flatnonzero(np.isin(labels, classes[: round(len(classes) / 4)]))
        images = np.asarray(feature_set.image_features)[rows]
        plain, ours = (
            100 * (logits.argmax(axis=1) == labels[rows]).mean()
            for logits in (adapter.transduce(images, rounds=0), adapter.transduce(images))
        )
        assert ours >= plain - 0.3


@pytest.mark.parametrize("name", ["whurs19/clip_vitb32", "cars/clip_vitb32"])
def test_order_and_cut_do_not_matter_on_real_features(name):
    feature_set = real(name)
    images = np.asarray(feature_set.image_features)
    adapter, order = soba.SOBAPlus(feature_set), np.random.default_rng(0).permutation(len(images))
    with blocks_of(97):
        ours = adapter.transduce(images[order])
    assert_same_logits(ours, adapter.transduce(images)[order])


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize(
    "name",
    ["whurs19/clip_rn50", "whurs19/clip_vitb32", "cars/clip_vitb32", "tiny_imagenet/clip_vitb16"],
)
def test_sets_of_few_of_many_classes_gain(name, classes):
    feature_set = real(name)
    labels, adapter = np.asarray(feature_set.labels), soba.SOBAPlus(feature_set)
    gains = []
    for seed in range(4):
        some = np.random.default_rng(seed).permutation(np.unique(labels))[:classes]
        rows = np.flatnonzero(np.isin(labels, some))
        images = np.asarray(feature_set.image_features)[rows]
        plain, ours = (
            100 * (logits.argmax(axis=1) == labels[rows]).mean()
            for logits in (adapter.transduce(images, rounds=0), adapter.transduce(images))
        )
        gains.append(ours - plain)
    assert np.mean(gains) > 2.0
