import numpy as np
import pytest

import soba
from soba.bench.tuning import NeighbourAgreement, candidates, search
from soba.testing import example_stream

FEATURES, LABELS, TEXT = example_stream(n=400, classes=8, width=16)
SET = soba.FeatureSet(FEATURES, TEXT, 20.0, LABELS)


def test_the_papers_value_is_always_tried_and_wins_a_draw():
    assert 15.0 in candidates("soba") and 2.0 in candidates("tda")
    assert candidates("zero-shot") == candidates("gda") == ()
    assert search("soba", lambda alpha: 1.0).alpha == 15.0
    outcome = search("soba", lambda alpha: -abs(alpha - 31))
    assert outcome.alpha == 30.0
    assert set(outcome.scores) == set(candidates("soba"))


def test_agreement_prefers_right_answers_and_knows_no_confidence():
    score = NeighbourAgreement(SET)
    order = np.random.default_rng(0).permutation(len(SET))
    right = np.eye(8)[LABELS[order]]
    random = np.random.default_rng(1).normal(size=right.shape)
    assert score(order, right) > score(order, 0.6 * right + random) > score(order, random)
    assert abs(score(order, random)) < 0.05
    assert score(order, 100 * right) == score(order, right)
    assert score(order, np.ones_like(right)) == 0.0  # one answer for all is no agreement
    with pytest.raises(ValueError, match="no neighbours"):
        NeighbourAgreement(soba.FeatureSet(FEATURES[:1], TEXT))


def test_without_labels_the_stream_still_says_which_alpha(whurs19):
    """On real features the choice without labels is no worse than the paper's value."""
    features = soba.FeatureSet.load(whurs19)
    score = NeighbourAgreement(features)
    order = np.random.default_rng(1000).permutation(len(features))
    labels = features.labels[order]
    hits = {}

    def run(alpha):
        adapter = soba.NCM(
            features.text_features,
            logit_scale=features.logit_scale,
            alpha=alpha,
            refresh="tenths",
            total=len(order),
        )
        logits = adapter.adapt(features.image_features[order])
        hits[alpha] = float((logits.argmax(axis=1) == labels).mean())
        return score(order, logits)

    assert hits[search("ncm", run).alpha] >= hits[15.0]
