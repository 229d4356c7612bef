"""How much the Gaussians of SOBA+ count: each formula of the headers sample by sample."""

from types import SimpleNamespace

import numpy as np
import pytest

from soba.adapt._weighing import strength, weighed, weighed_by

CLASSES, DRAWN = 6, 300


def parts_of(statistics):
    """What `weighed` takes of the statistics."""
    return [statistics[name] for name in ("evidence", "unknown", "weighing")]


def softmax(logits):
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def evidence_of(clip, fill):
    """What is asked of the evidence: CLIP's logits of the sample, and the classes' fill."""
    return SimpleNamespace(
        clip=clip,
        drawn_confidence=softmax(clip).max(axis=1),
        by_class=lambda mass: np.minimum(mass / 16.0, 1.0),
        mass=16.0 * np.asarray(fill),
    )


def drawn(seed=0, height=2.0, spread=2.0, hub=0.0):
    """CLIP's logits and the Gaussians' scores of a sample; CLIP leans to class 0 by `hub`."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=DRAWN)
    clip, scores = rng.normal(size=(2, DRAWN, CLASSES))
    clip[np.arange(DRAWN), labels] += height
    clip[:, 0] += hub
    scores = spread * scores
    scores[np.arange(DRAWN), labels] += 3.0
    return clip.astype(np.float32), scores.astype(np.float32)


FULL = np.ones(CLASSES)
UNEVEN = np.array([1.0, 0.5, 0.2, 0.12, 0.0, 0.9])  # 0.12 ** 0.5 is just below 0.37, 0.2 above


# Height of CLIP's logits, width of the Gaussians' scores; in the last case they agree more often
# than CLIP is sure, and the answers are too sure all the same.
CALIBRATIONS = [(1.0, 2.0), (2.0, 2.0), (3.0, 1.0), (6.0, 0.5), (6.0, 4.0), (1.0, 0.5)]


def slow(clip, scores, fill):
    """The weighing of SOBA+'s header: [weight, spread, quantiles of max G]."""
    e = [f**0.5 for f in fill]
    known = [k for k in range(CLASSES) if e[k] >= 0.37 * max(e)]
    doubt = np.mean([1.0 - softmax(row).max() for row in clip.astype(float)])

    def perplexity(table):
        answers = [known[int(np.argmax(row[known]))] for row in table]
        shares = [answers.count(k) / len(answers) for k in set(answers)]
        return 2.0 ** -sum(p * np.log2(p) for p in shares)

    spread = (perplexity(scores) / perplexity(clip)) ** 12
    best = sorted(row[known].max() for row in scores.astype(float))
    places = [q * (len(best) - 1) for q in (0.02, 0.5)]
    quantiles = [np.interp(place, range(len(best)), best) for place in places]
    agree = [
        known[int(np.argmax(g[known]))] == z.argmax() for g, z in zip(scores, clip, strict=True)
    ]
    error = np.sqrt(doubt * (1.0 - doubt) / len(clip))  # of a share, by chance
    borne_out = max(np.mean(agree) - (1.0 - doubt) - 0.5 * error, 0.0) / doubt
    weight = 1.2 * min(1.0, (doubt / 0.3) ** 2 + 3.0 * borne_out)
    oversure = min(max((1.0 - doubt - np.mean(agree)) / 0.05, 0.0), 1.0)
    return known, [weight, min(max(spread, 0.25), 8.0) ** oversure, *quantiles]


@pytest.mark.parametrize("fill", [FULL, UNEVEN, 0.1 * UNEVEN], ids=["full", "uneven", "early"])
@pytest.mark.parametrize(
    "sample",
    [
        drawn(),
        drawn(height=9.0),  # CLIP is sure
        drawn(hub=0.4),
        drawn(hub=3.0),  # CLIP sends nearly all to one class
        drawn()[::-1],
        drawn(hub=3.0)[::-1],  # the Gaussians do
        drawn(spread=9.0),
        drawn(height=4.0, spread=0.5),  # CLIP is right more often than it is sure
        drawn(height=6.0, spread=1.0),
    ],
    ids=["doubt", "sure", "leaning", "hub", "swapped", "Gaussian hub", "wide", "borne out", "both"],
)
def test_the_weighing_equals_the_formulas(sample, fill):
    clip, scores = sample
    evidence = evidence_of(clip, fill)
    statistics = weighed_by(evidence, evidence.mass, scores.copy())
    known, expected = slow(clip, scores, fill)
    np.testing.assert_allclose(statistics["weighing"], expected, rtol=1e-4)
    np.testing.assert_allclose(statistics["evidence"], np.sqrt(fill), rtol=1e-6)
    assert np.flatnonzero(statistics["unknown"] == 0.0).tolist() == known
    assert (np.delete(statistics["unknown"], known) < -1e20).all()


def slow_weighed(scores, e, known, weighing):
    weight, spread, new, typical = weighing
    moved = np.zeros(scores.shape)
    for i, row in enumerate(scores.astype(float)):
        best = row[known].max()
        s = weight * min(max(best / max(new, 1.0), 0.0), 1.0)
        s *= spread ** min(max((best - new) / max(typical - new, 1.0), 0.0), 1.0)
        for k in range(CLASSES):
            moved[i, k] = s * e[k] * (row[k] - best - weight**2 * max(new - best, 0.0))
    return moved


WEIGHINGS = [
    [0.8, 2.0, 1.5, 4.0],
    [1.0, 0.25, -0.5, 0.3],  # quantiles closer than a nat
    [0.3, 1.0, 1.0, 3.0],  # as spread as CLIP
]


@pytest.mark.parametrize("weighing", WEIGHINGS)
@pytest.mark.parametrize("fill", [FULL, UNEVEN], ids=["full", "uneven"])
def test_scores_are_weighed_one_by_one(fill, weighing):
    _, scores = drawn()
    scores[:9] -= 20.0  # like nothing that was seen
    evidence = evidence_of(*drawn()[:1], fill)
    statistics = weighed_by(evidence, evidence.mass, scores.copy())
    statistics["weighing"] = np.array(weighing)
    known = np.flatnonzero(statistics["unknown"] == 0.0)
    moved = weighed(np, scores.copy(), *parts_of(statistics))
    expected = slow_weighed(scores, np.sqrt(fill), known, weighing)
    np.testing.assert_allclose(moved, expected, rtol=1e-4, atol=1e-4)
    assert not moved[:9].any()  # CLIP's to answer
    assert moved[9:].any()
    np.testing.assert_array_equal(moved[:, np.asarray(fill) == 0.0], 0.0)


def test_known_classes_lose_to_unknown_ones_where_an_image_fits_none():
    fill = np.array([1.0, 1.0, 0.5, 0.5, 0.0, 0.0])
    row, weighing = np.array([[1.5, 0.5, 1.5, 0.0, 0.0, 0.0]]), np.array(WEIGHINGS[0])
    unknown = np.where(fill > 0.0, 0.0, -1e30)
    usual, new = (weighed(np, row + more, np.sqrt(fill), unknown, weighing) for more in (9.0, -0.5))
    assert usual[0, 0] == 0.0 == usual[0, 4] and (usual[0, 1:4] <= 0.0).all()
    assert (new[0, :4] < 0.0).all() and not new[0, 4:].any()
    assert new[0, 0] < new[0, 2]  # the better a class is known, the more it loses


def test_the_strength_grows_with_what_is_familiar():
    best = np.linspace(-5.0, 9.0, 200)
    for weighing in WEIGHINGS:
        weights = strength(np, best, np.array(weighing))
        assert (weights[best <= 0.0] == 0.0).all()
        assert weights.max() <= weighing[0] * max(weighing[1], 1.0) + 1e-12
        if weighing[1] >= 1.0:
            assert (np.diff(weights) >= 0.0).all()
        assert weights[-1] == pytest.approx(weighing[0] * weighing[1])


@pytest.mark.parametrize(("height", "wide"), CALIBRATIONS)
@pytest.mark.parametrize("fill", [FULL, UNEVEN], ids=["full", "uneven"])
def test_the_calibration_equals_the_formulas(fill, height, wide):
    clip, scores = drawn(height=height, spread=wide)
    evidence = evidence_of(clip, fill)
    statistics = weighed_by(evidence, evidence.mass, scores.copy())
    known, weighing = slow(clip, scores, fill)
    clip, scores = clip[:256].astype(float), scores[:256]
    moved = clip + slow_weighed(scores, np.sqrt(fill), known, weighing)
    answers = clip.argmax(axis=1)
    agree = np.mean([answers[i] == known[scores[i, known].argmax()] for i in range(256)])
    sure = softmax(clip).max(axis=1).mean()
    target = sure + 3.0 * (agree - sure) if agree > sure else sure
    temperature, hot = 1.0, 16.0
    if softmax(moved).max(axis=1).mean() > target:
        cold = 1.0
        for _ in range(60):  # bisection
            temperature = (cold + hot) / 2
            if softmax(moved / temperature).max(axis=1).mean() > target:
                cold = temperature
            else:
                hot = temperature
    assert statistics["temperature"][0] == pytest.approx(temperature, rel=2e-3)
    chances = softmax(moved / temperature)
    expected = [np.mean([chances[i, answers[i]] for i in range(256)]), chances.max(axis=1).mean()]
    np.testing.assert_allclose(statistics["expected"], expected, atol=1e-3)


def test_the_calibrations_tell_both_ways():
    """Of the cases above some are cooled, and some may be surer than CLIP."""
    temperatures = []
    for height, wide in CALIBRATIONS:
        clip, scores = drawn(height=height, spread=wide)
        evidence = evidence_of(clip, FULL)
        temperatures.append(weighed_by(evidence, evidence.mass, scores)["temperature"][0])
    assert min(temperatures) == 1.0 and max(temperatures) > 1.1
