"""Answers as supervision's own class, on the real package."""

import sys

import numpy as np
import pytest

import soba
from soba.bridges import to_classifications

# Without OpenCV it says that it is slower, and works.
pytestmark = pytest.mark.filterwarnings("ignore:OpenCV:UserWarning")

NAMES = ("bell", "bug", "bus")


def test_answers_are_classifications():
    import supervision

    answer = soba.Answer("a.png", "bus", 0.7, (("bus", 0.7), ("bell", 0.2), ("bug", 0.1)))
    classifications = to_classifications(answer, NAMES)
    assert isinstance(classifications, supervision.Classifications)
    assert classifications.class_id.tolist() == [2, 0, 1]
    classes, confidences = classifications.get_top_k(2)
    assert classes.tolist() == [2, 0] and confidences.tolist() == [0.7, 0.2]


def test_a_classifier_all_the_way(icon_stream):
    clf = soba.Classifier("tiny", NAMES)
    for answer in clf.classify(icon_stream, top=3):
        classifications = to_classifications(answer, clf.names)
        assert clf.names[int(classifications.get_top_k(1)[0][0])] == answer.label
        assert classifications.confidence.sum() == pytest.approx(1.0, abs=1e-4)


def test_broken_images_have_no_candidates_and_foreign_labels_are_refused(tmp_path):
    clf = soba.Classifier("tiny", NAMES)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (answer,) = clf.classify(tmp_path / "broken.png")
    assert answer.error and len(to_classifications(answer, clf.names)) == 0
    with pytest.raises(ValueError, match="'cat' is none of the 3 names"):
        to_classifications(soba.Answer("a.png", "cat", 1.0, (("cat", 1.0),)), NAMES)


def test_without_supervision_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(ImportError, match=r"needs supervision: pip install 'soba-tta\[bridges\]'"):
        to_classifications(soba.Answer("a.png"), NAMES)


def test_numbers_are_those_of_arrays():
    classifications = to_classifications(soba.Answer("a", "bug", 1.0, (("bug", 1.0),)), NAMES)
    assert isinstance(classifications.class_id, np.ndarray)
