import numpy as np
import pytest

import soba
from soba.bench.orders import ORDERS, arrange, join

LABELS = np.random.default_rng(0).integers(5, size=60)
DOMAINS = np.repeat([0, 1, 2], [10, 30, 20])


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_is_a_permutation_that_the_seed_decides(name):
    orders = [arrange(name, LABELS, 5, seed, DOMAINS).tolist() for seed in (0, 0, 1)]
    assert sorted(orders[0]) == list(range(60))
    assert orders[0] == orders[1] != orders[2]


def test_each_is_what_its_name_says():
    labels = LABELS[arrange("sorted", LABELS, 5, 3)]
    assert (labels[1:] != labels[:-1]).sum() == 4  # five runs
    assert (np.diff(DOMAINS[arrange("sequence", LABELS, 5, 3, DOMAINS)]) >= 0).all()
    assert (np.diff(DOMAINS[arrange("mixed", LABELS, 5, 3, DOMAINS)]) < 0).any()
    expected = np.random.default_rng(3).permutation(60)
    assert (arrange("shuffled", LABELS, 5, 3) == expected).all()
    with pytest.raises(ValueError, match="needs the domain"):
        arrange("sequence", LABELS, 5, 3)
    with pytest.raises(ValueError, match="no order 'backwards'"):
        arrange("backwards", LABELS, 5, 3)


def features(text, labels, **more):
    rows = np.asarray(text)[labels] + 0.01
    return soba.FeatureSet(rows, np.asarray(text), labels=np.asarray(labels), **more)


def test_joined_sets_share_the_union_of_their_classes():
    eye = np.eye(4)
    first = features(eye[:3], [0, 1, 2, 2], class_names=("cat", "missile", "missile"))
    second = features(eye[[3, 2]], [0, 1, 1], class_names=("dog", "missile"))
    joined, domains = join([first, second], [("n1", "n2", "n3"), ("n4", "n3")])
    assert joined.class_names == ("cat", "missile", "missile", "dog")
    assert joined.labels.tolist() == [0, 1, 2, 2, 3, 2, 2]
    assert domains.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert (joined.text_features == eye).all()
    assert joined.image_features.shape == (7, 4)


def test_text_of_other_templates_is_joined_and_said_to_be_mixed():
    classes = [("a", "b", "c")] * 2
    prints = {"encoder_fingerprint": "tiny", "templates_fingerprint": "01234567"}
    one = features(np.eye(3), [0, 1], **prints)
    other = features(np.eye(3), [0, 1], **prints | {"templates_fingerprint": "fedcba98"})
    assert join([one, one], classes)[0].templates_fingerprint == "01234567"
    joined = join([one, other], classes)[0]
    assert (joined.encoder_fingerprint, joined.templates_fingerprint) == ("tiny", None)
    foreign = features(np.eye(3), [0, 1], **prints | {"encoder_fingerprint": "other"})
    with pytest.raises(ValueError, match="different encoders do not mix"):
        join([one, foreign], classes)


def test_sets_that_do_not_fit_are_refused():
    one, other = features(np.eye(3), [0, 1]), features(np.eye(3), [0, 1], logit_scale=50.0)
    with pytest.raises(ValueError, match="another encoder"):
        join([one, other], [("a", "b", "c")] * 2)
    with pytest.raises(ValueError, match="no labels"):
        join([soba.FeatureSet(np.eye(3), np.eye(3))], [("a", "b", "c")])
