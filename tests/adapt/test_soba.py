"""The algebra of the readings: why the formula the paper prints cannot work."""

import numpy as np
import pytest
from rounding import assert_same_logits

import soba
from soba.adapt.soba import eigenbasis
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=300, classes=6, width=16, seed=1)


def adapted(reading, **options):
    adapter = soba.SOBA(
        TEXT, logit_scale=20.0, reading=reading, refresh="tenths", total=300, **options
    )
    adapter.adapt(FEATURES)
    return adapter


def test_rotating_both_sides_changes_nothing():
    """(f Q)(mu Q)^T = f mu^T: "dual" is nearest class mean by dot product, for any rotation."""
    adapter = adapted("dual")
    items = adapter.queue.items()
    means = np.array([items.features[items.labels == k].mean(0) for k in range(6)])
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]
    clip = 20.0 * FEATURES @ TEXT.T
    rotated = (FEATURES @ rotation) @ (means @ rotation).T
    np.testing.assert_allclose(adapter.logits(FEATURES), clip + 15.0 * rotated, atol=1e-4)
    np.testing.assert_allclose(
        adapter.logits(FEATURES), clip + 15.0 * FEATURES @ means.T, atol=1e-4
    )
    # Lengths do not change under a rotation either, so neither does the l2 classifier.
    gaps = np.linalg.norm(FEATURES[:, None] - means, axis=-1)
    np.testing.assert_allclose(
        adapted("dual", classifier="l2").logits(FEATURES), clip - 15.0 * gaps, atol=1e-4
    )


def with_flipped_signs(monkeypatch, reading):
    """The adapter's answers when LAPACK returns half of the eigenvectors with the other sign."""
    signs = np.where(np.arange(16) % 2, -1.0, 1.0)

    def flipped(covariance):
        values, vectors = eigenbasis(covariance)
        return values, vectors * signs

    monkeypatch.setattr("soba.adapt.soba.eigenbasis", flipped)
    return adapted(reading).logits(FEATURES)


def test_the_literal_formula_depends_on_the_signs_of_eigenvectors(monkeypatch):
    plain = adapted("literal").logits(FEATURES)
    assert np.abs(with_flipped_signs(monkeypatch, "literal") - plain).max() > 1.0


@pytest.mark.parametrize("reading", ["whitened", "gda"])
def test_our_readings_do_not(monkeypatch, reading):
    def refuse(*_):
        raise AssertionError("eigenvectors were computed")

    # They cannot depend on signs: no eigenvectors are computed at all.
    for name in ("soba.adapt.soba.eigenbasis", "numpy.linalg.eigh", "numpy.linalg.svd"):
        monkeypatch.setattr(name, refuse)
    plain = adapted(reading).logits(FEATURES)
    with pytest.raises(AssertionError, match="eigenvectors were computed"):
        adapted("literal")
    # And they are what any eigenbasis says: rotate, scale the axes, (whitened) compare directions.
    monkeypatch.undo()
    adapter = adapted(reading)
    items = adapter.queue.items()
    means = np.array([items.features[items.labels == k].mean(0) for k in range(6)])
    signs = np.random.default_rng(0).choice([-1.0, 1.0], 16)
    basis, values = adapter.basis_ * signs, adapter.eigenvalues_
    scale = 16.0 / ((len(items.ids) - 1) * values + values.sum())
    clip = 20.0 * FEATURES @ TEXT.T
    if reading == "whitened":
        centre = means.mean(0)
        hats = ((means - centre) @ basis * scale) @ basis.T
        hats /= np.linalg.norm(hats, axis=1, keepdims=True)
        query = FEATURES - centre
        scores = query / np.linalg.norm(query, axis=1, keepdims=True) @ hats.T
    else:
        hats = (means @ basis * scale) @ basis.T
        scores = FEATURES @ hats.T - 0.5 * (hats * means).sum(1)
    np.testing.assert_allclose(plain, clip + 15.0 * scores, atol=2e-4 * np.abs(plain).max())


def test_basis():
    adapter = adapted("whitened")
    basis, values = adapter.basis_, adapter.eigenvalues_
    np.testing.assert_allclose(basis @ np.diag(values) @ basis.T, adapter.covariance_, atol=1e-9)
    np.testing.assert_allclose(basis.T @ basis, np.eye(16), atol=1e-9)
    assert (np.diff(values) <= 0).all()
    with pytest.raises(ValueError, match="refreshed"):
        soba.SOBA(TEXT).basis_  # noqa: B018


def test_plain_clip_until_there_is_something_to_say():
    zero_shot = soba.ZeroShot(TEXT).adapt(FEATURES)
    before = soba.SOBA(TEXT, refresh=50).adapt(FEATURES)
    assert_same_logits(before[:49], zero_shot[:49])
    assert not np.allclose(before[49], zero_shot[49])
    # One class only; then two classes of one sample each, which have no scatter.
    text = np.eye(4)
    for stream in (np.repeat(text[:1], 5, 0), text[:2]):
        assert_same_logits(
            soba.SOBA(text, refresh=1).adapt(stream), soba.ZeroShot(text).adapt(stream)
        )


def test_refresh_before_the_boundary_sample_is_scored():
    """After learning sample b the statistics refresh, then sample b is scored with them."""
    adapter = soba.SOBA(TEXT, refresh=100)
    out = adapter.adapt(FEATURES[:100])
    again = soba.SOBA(TEXT, refresh=100)
    again.adapt(FEATURES[:99])
    assert again.statistics_ is None
    np.testing.assert_allclose(again.adapt(FEATURES[99]), out[99], rtol=1e-5)
    np.testing.assert_allclose(again.logits(FEATURES[99]), out[99], rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"reading": "rotated"},
        {"reading": "ncm"},  # that is soba.NCM
        {"reading": "gda", "classifier": "l1"},
        {"classifier": "cosine"},
        {"alpha": -1.0},
        {"alpha": float("nan")},
        {"capacity": 0},
        {"refresh": "tenths"},
        {"refresh": 0},
        {"refresh": True},
        {"refresh": "hourly"},
        {"max_gap": 0},
        {"max_gap": 2.5},
        {"capacity": True},
        {"refresh": "tenths", "total": 100.5},
        {"logit_scale": 1e39},
    ],
    ids=str,
)
def test_bad_parameters(options):
    with pytest.raises(ValueError):
        soba.SOBA(TEXT, **options)


def test_numpy_integers_are_integers():
    options = {"capacity": np.int64(3), "refresh": np.int64(5), "max_gap": np.int32(7)}
    assert soba.SOBA(TEXT, **options).params["refresh"] == 5


@pytest.mark.parametrize("reading", ["whitened", "gda", "literal"])
def test_copies_of_one_image_a_class_are_no_scatter(reading):
    adapter = soba.SOBA(TEXT, reading=reading, refresh=1)
    adapter.adapt(np.repeat(TEXT[:4], 7, axis=0))
    assert adapter.queue.sizes.tolist() == [7, 7, 7, 7, 0, 0]
    assert adapter.statistics_ is None


def test_rows_of_any_size():
    plain = soba.ZeroShot(TEXT).logits(FEATURES.astype(np.float32))
    for size in (1e-38, 1e-25, 1e-20, 1e20, 1e37):
        scaled = (FEATURES * size).astype(np.float32)
        np.testing.assert_allclose(soba.ZeroShot(TEXT).logits(scaled), plain, rtol=1e-3)


def test_given_ids_and_counted_ones_do_not_collide():
    adapter = soba.SOBA(TEXT)
    adapter.adapt(FEATURES[:5])
    adapter.adapt(FEATURES[5:10], ids=np.arange(5))
    adapter.adapt(FEATURES[10:12], ids=[2**63 - 2, 7])
    adapter.adapt(FEATURES[12:15])
    assert adapter.n_seen == 15
    given = [0, 1, 2, 3, 4, 7, 2**63 - 2]
    assert sorted(adapter.queue.items().ids.tolist()) == [*range(-8, 0), *given]
    for bad in (-1, -(2**63)):
        with pytest.raises(ValueError, match=f"ids must be 0 or more, not {bad}"):
            adapter.adapt(FEATURES[15], ids=[bad])
    assert adapter.n_seen == 15
