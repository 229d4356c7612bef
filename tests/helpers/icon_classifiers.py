"""Classifiers of four classes of icons, their images, and whether their answers agree.

Whoever imports the fixtures has them as `tiny`, `classifier` and `files`.
"""

import pytest

import soba
from soba.datasets.icons import icons

NAMES = icons("source", per_class=1).class_names[:4]


@pytest.fixture(name="tiny", scope="module")
def tiny_encoder():
    return soba.load_encoder("tiny")


@pytest.fixture(name="classifier")
def icon_classifier(tiny):
    return soba.Classifier(tiny, NAMES)


@pytest.fixture(name="files", scope="module")
def icon_files(icon_stream):
    return sorted(map(str, icon_stream.iterdir()))


def seen(classifier):
    return classifier.adapter.n_seen


def alike(ours, theirs):
    """The same answers, up to the rounding of float products."""
    assert [answer.label for answer in ours] == [answer.label for answer in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert [name for name, _ in one.top] == [name for name, _ in other.top]
        chances = [[chance for _, chance in answer.top] for answer in (one, other)]
        assert chances[0] == pytest.approx(chances[1], abs=1e-4)
        assert one.zero_shot == other.zero_shot
