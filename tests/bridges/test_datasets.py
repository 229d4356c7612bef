"""Hugging Face data sets: images in a column, answers in four more."""

import sys

import pytest
from PIL import Image

import soba
from soba.bridges import add_answers

NAMES = ("bell", "bug", "bus", "camera")
ADDED = ["soba_label", "soba_probability", "soba_zero_shot", "soba_error"]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    package = pytest.importorskip("datasets")
    package.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")
    package.disable_progress_bars()
    return package


@pytest.fixture
def paths(icon_stream):
    return [str(path) for path in sorted(icon_stream.iterdir())]


def images(datasets, paths, **more):
    columns = {"image": paths, "number": list(range(len(paths)))} | more
    return datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())


def expected(paths):
    return list(soba.Classifier("tiny", NAMES).classify(paths, batch=16))


def test_columns_are_what_the_classifier_says(datasets, paths):
    answered = add_answers(images(datasets, paths), soba.Classifier("tiny", NAMES), batch=16)
    assert isinstance(answered, datasets.Dataset)
    assert answered.column_names == ["image", "number", *ADDED]
    answers = expected(paths)
    assert answered["soba_label"][:] == [answer.label for answer in answers]
    assert answered["soba_zero_shot"][:] == [answer.zero_shot for answer in answers]
    chances = [answer.probability for answer in answers]
    assert answered["soba_probability"][:] == pytest.approx(chances, abs=1e-6)
    assert answered["soba_error"][:] == [None] * len(paths)
    assert isinstance(answered[0]["image"], Image.Image)  # as it was


def test_a_stream_is_answered_as_it_is_read(datasets, paths):
    clf = soba.Classifier("tiny", NAMES)
    stream = add_answers(images(datasets, paths).to_iterable_dataset(), clf, batch=16)
    assert clf.adapter.n_seen == 0
    rows = iter(stream)
    first = next(rows)
    assert 0 < clf.adapter.n_seen <= 16  # no more than the first batch
    assert isinstance(first["image"], Image.Image)
    answered = [first, *rows]
    assert [row["soba_label"] for row in answered] == [answer.label for answer in expected(paths)]
    assert [row["number"] for row in answered] == list(range(len(paths)))


def test_learning_can_be_left_out_and_columns_named_otherwise(datasets, paths):
    clf = soba.Classifier("tiny", NAMES)
    table = images(datasets, paths[:8]).rename_column("image", "photo")
    answered = add_answers(table, clf, image="photo", prefix="", learn=False)
    assert clf.adapter.n_seen == 0
    assert answered["label"][:] == answered["zero_shot"][:]


def test_paths_bytes_and_broken_images(datasets, paths, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    with open(paths[0], "rb") as file:
        content = file.read()
    clf = soba.Classifier("tiny", NAMES)
    typed = images(datasets, [paths[0], None, str(broken), str(tmp_path / "gone.png"), paths[1]])
    answered = add_answers(typed, clf)
    assert [label is None for label in answered["soba_label"]] == [False, True, True, True, False]
    assert [chance is None for chance in answered["soba_probability"]] == [0, 1, 1, 1, 0]
    assert answered["soba_error"][1] == "no image in this row"
    assert all(answered["soba_error"][1:4])
    for cells in ([paths[0], str(tmp_path)], [content, b""]):  # a folder is no image
        plain = add_answers(datasets.Dataset.from_dict({"image": cells}), clf, learn=False)
        assert plain["soba_label"][0] == answered["soba_label"][0]
        assert plain["soba_label"][1] is None and plain["soba_error"][1]


def test_what_makes_no_sense_is_said(datasets, paths, monkeypatch):
    clf, table = soba.Classifier("tiny", NAMES), images(datasets, paths[:2])
    with pytest.raises(ValueError, match="no column 'photo': there are image, number"):
        add_answers(table, clf, image="photo")
    with pytest.raises(ValueError, match="a column 'soba_label' already"):
        add_answers(add_answers(table, clf), clf)
    with pytest.raises(TypeError, match="one split of a data set is needed, not DatasetDict"):
        add_answers(datasets.DatasetDict(train=table), clf)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"needs datasets: pip install 'soba-tta\[bridges\]'"):
        add_answers(table, clf)


def test_a_stream_that_does_not_say_what_is_in_it(datasets, paths):
    """Images come decoded then, and are known by their pixels."""
    stream = images(datasets, paths[:4]).to_iterable_dataset().map(lambda row: row)
    assert stream.features is None
    answered = list(add_answers(stream, soba.Classifier("tiny", NAMES), learn=False))
    assert [row["soba_label"] for row in answered] == [a.zero_shot for a in expected(paths[:4])]
