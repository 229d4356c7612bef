"""Learning without scores keeps what adapting keeps; the schedule goes on from the new count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import soba
from soba.testing import assert_same_samples, assert_same_state, example_stream

FEATURES, _, TEXT = example_stream()
CLIP = 20.0 * FEATURES @ TEXT.T


def make(name, **options):
    return soba.create_adapter(name, TEXT, logit_scale=20.0, **options)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["soba+", "soba", "tda", "oga", "adapt", "etta", "pta"]),
    cuts=st.lists(st.integers(1, 239), max_size=6, unique=True).map(sorted),
    verbs=st.lists(st.sampled_from(["learn", "adapt"]), min_size=7, max_size=7),
    counted=st.booleans(),
)
def test_however_learned_and_adapted(name, cuts, verbs, counted):
    whole, mixed, ids = make(name), make(name), np.random.default_rng(0).permutation(1000)[:240]
    whole.adapt(FEATURES, ids=None if counted else ids)
    for part, verb in zip(np.split(np.arange(240), cuts), verbs, strict=False):
        getattr(mixed, verb)(FEATURES[part], ids=None if counted else ids[part])
    assert_same_samples(mixed, whole)
    expected = whole.refresh().logits(FEATURES)
    np.testing.assert_allclose(mixed.refresh().logits(FEATURES), expected, atol=1e-5 * 20.0)


@pytest.mark.parametrize("name", ["soba", "soba+", "ncm"])
def test_the_schedule_goes_on_from_the_new_count(name):
    adapter = make(name, refresh=50)
    adapter.learn(FEATURES[:120])  # past the boundaries 50 and 100
    assert adapter.statistics_ is None
    between = adapter.adapt(FEATURES[120:149])
    np.testing.assert_allclose(between, CLIP[120:149], atol=1e-4)
    at_boundary = adapter.adapt(FEATURES[149])
    assert adapter.statistics_ is not None
    expected = make(name, refresh=50)
    expected.adapt(FEATURES[:150])
    np.testing.assert_allclose(at_boundary, expected.logits(FEATURES[149]), atol=1e-5 * 20.0)


def test_dota_learns_and_refreshes():
    whole, learned = make("dota", refresh=32), make("dota", refresh=32)
    whole.adapt(FEATURES[:100])
    learned.learn(FEATURES[:40])
    learned.learn(FEATURES[40:100])
    np.testing.assert_allclose(learned.logits(FEATURES), make("dota").logits(FEATURES), atol=1e-4)
    expected = whole.refresh().logits(FEATURES)
    np.testing.assert_allclose(learned.refresh().logits(FEATURES), expected, atol=1e-5 * 20.0)
    np.testing.assert_allclose(
        learned.adapt(FEATURES[100:]), whole.adapt(FEATURES[100:]), atol=1e-5 * 20.0
    )


def test_views_are_learned_from_as_they_are_adapted_to():
    views = np.repeat(FEATURES[:, None], 10, axis=1)
    views[:, 1:] += 0.05 * np.random.default_rng(0).normal(size=views[:, 1:].shape)
    adapted, learned = make("soba+"), make("soba+")
    adapted.adapt(views)
    learned.learn(views[:100])
    learned.learn(views[100:])
    assert_same_samples(learned, adapted)


def test_blocks_change_nothing(monkeypatch):
    from soba.adapt import stream

    whole = make("soba+", horizon=90)
    whole.learn(FEATURES)
    monkeypatch.setattr(stream, "_LEAST_ROWS", 7)
    monkeypatch.setattr(stream, "_BLOCK_LOGITS", 1)
    in_blocks = make("soba+", horizon=90)
    in_blocks.learn(FEATURES)
    assert_same_samples(in_blocks, whole)


@pytest.mark.parametrize("ids", [[3, 3], [-1, 2], [1.5, 2.0], [1, 2, 3]])
def test_what_is_refused_changes_nothing(ids):
    adapter = make("soba+")
    adapter.adapt(FEATURES[:50], ids=np.arange(50))
    before = adapter.state()
    with pytest.raises((ValueError, TypeError), match="ids"):
        adapter.learn(FEATURES[50:52], ids=ids)
    with pytest.raises(ValueError, match="row 1 holds NaN"):
        adapter.learn(np.where(np.arange(2)[:, None] == 1, np.nan, FEATURES[50:52]))
    assert_same_state(adapter.state(), before)


def test_the_rule_is_a_parameter_and_refresh_a_verb():
    adapter = soba.SOBA(TEXT, refresh="tenths", total=240)
    assert adapter.params["refresh"] == adapter.refresh_rule == "tenths"
    assert "refresh='tenths'" in repr(adapter)
    assert adapter.refresh() is adapter
