"""The ten cross-dataset sets: the real splits, and trees in which something is wrong."""

import json
import re
import shutil
from collections import Counter

import numpy as np
import pytest
from conftest import REAL_DATA
from image_trees import aircraft_tree, coop_tree, generated_split

from soba.datasets import check, class_names, load, survey
from soba.datasets._facts import catalogue, coop_class_names

REAL = ("caltech101", "cars", "dtd", "eurosat", "flowers102", "pets", "ucf101")


def real_split(name):
    file = catalogue()[name].splits.rpartition("/")[2]
    path = REAL_DATA / "metadata" / "coop_splits" / file
    if not path.is_file():
        pytest.skip(f"no real split at {path}; set SOBA_REAL_DATA")
    return json.loads(path.read_text())


@pytest.fixture
def dtd(tmp_path, pictures):
    """A data root with the whole test split of DTD, and the splits as they were written."""
    splits = real_split("dtd")
    return tmp_path / "data", coop_tree(tmp_path / "data", pictures, "dtd", splits), splits


@pytest.mark.parametrize("name", REAL)
def test_real_splits_load_as_they_are(name, tmp_path, pictures):
    splits, root = real_split(name), tmp_path / "data"
    images = coop_tree(root, pictures, name, splits)
    assert check(name, root) == []
    test = load(name, root)
    assert test.keys == tuple(key for key, _, _ in splits["test"])
    assert test.labels.tolist() == [label for _, label, _ in splits["test"]]
    assert all(
        test.class_names[label] == words.replace("_", " ") for _, label, words in splits["test"]
    )
    assert test.root == images
    assert test.image(len(test) - 1).size == (8, 8)
    # Only the test images are there, and that is said of the other splits.
    with pytest.raises(ValueError, match="no train images found"):
        load(name, root, "train")


@pytest.mark.parametrize("name", ["food101", "sun397"])
def test_generated_splits_are_there_and_their_count_is_named(name, tmp_path, pictures):
    splits = generated_split(name)
    coop_tree(tmp_path / "data", pictures, name, splits, only=("train", "val", "test"))
    classes = len(coop_class_names(name))
    [problem] = check(name, tmp_path / "data")
    assert f"lists {2 * classes} test images, not {catalogue()[name].sizes['test']}" in problem
    test = survey(name, tmp_path / "data").image_set
    assert test.class_names == class_names(name)
    assert Counter(test.labels.tolist()) == dict.fromkeys(range(classes), 2)
    assert (
        len(load(name, tmp_path / "data", "train")) == 3 * classes
    )  # of unknown size: not checked
    assert len(survey(name, tmp_path / "data", "val").image_set) == 2 * classes


def test_food101_as_coop_numbers_it(tmp_path, pictures):
    """CoOp's split gives each folder its place among the sorted folders."""
    folders = sorted(coop_class_names("food101"))
    lines = [
        [f"{folder}/{number}.jpg", label, folder]
        for label, folder in enumerate(folders)
        for number in range(300)
    ]
    coop_tree(tmp_path / "data", pictures, "food101", {"train": [], "val": [], "test": lines})
    test = load("food101", tmp_path / "data")
    assert len(test) == 30_300
    for index in (16 * 300, 17 * 300):
        folder = test.keys[index].partition("/")[0]
        assert test.class_names[test.labels[index]] == folder.replace("_", " ")


def test_aircraft_reads_its_text_files(tmp_path, pictures, no_image_is_opened):
    aircraft_tree(tmp_path, pictures)
    test = load("aircraft", tmp_path)
    assert len(test) == 3333
    assert test.keys[0] == "0000201.jpg"
    assert test.class_names[test.labels[72]] == "F-16A/B"
    train = load("aircraft", tmp_path, "train")
    assert (test.name, train.name, len(train)) == ("aircraft", "aircraft-train", 100)


def test_aircraft_names_what_is_wrong(tmp_path, pictures):
    folder = aircraft_tree(tmp_path, pictures)
    (folder / "images" / "0000300.jpg").rename(folder / "images" / "300.jpg")
    problems = " ".join(check("aircraft", tmp_path))
    assert "1 of 3333 images missing: 0000300.jpg" in problems
    assert "files beside them in no split, perhaps renamed: 300.jpg" in problems
    variants = (folder / "variants.txt").read_text().splitlines()
    (folder / "variants.txt").write_text("\n".join(reversed(variants)))
    assert "label order than CoOp's: label 0 is 'Yak-42', not '707-320'" in " ".join(
        check("aircraft", tmp_path)
    )
    (folder / "variants.txt").write_text("\n".join(variants[1:]))
    [problem] = check("aircraft", tmp_path)
    assert "'707-320' is not among the classes of variants.txt" in problem
    (folder / "variants.txt").write_bytes(b"caf\xe9\n")
    assert check("aircraft", tmp_path) == [f"{folder / 'variants.txt'}: not UTF-8 text"]
    (folder / "variants.txt").unlink()
    [problem] = check("aircraft", tmp_path)
    assert problem.endswith("variants.txt: not found")


def test_a_missing_class_is_named(dtd, no_image_is_opened):
    root, images, _ = dtd
    shutil.rmtree(images / "banded")
    with pytest.raises(ValueError) as caught:
        load("dtd", root)
    message = str(caught.value)
    assert "36 of 1692 images missing: banded/banded_0060.jpg, " in message
    assert " and 26 more" in message
    assert "missing folders: banded" in message
    assert "no test image of 1 of 47 classes: 'banded' (label 0)" in message
    test = survey("dtd", root).image_set
    assert len(test) == 1656
    assert len(test.class_names) == 47
    assert sorted(set(test.labels.tolist())) == list(range(1, 47))


def test_an_incomplete_set_is_loaded_when_asked_for(dtd, no_image_is_opened):
    root, images, splits = dtd
    (images / splits["test"][0][0]).unlink()
    linked = images / splits["test"][1][0]
    linked.unlink()
    linked.symlink_to(root / "nowhere.jpg")
    [problem] = check("dtd", root)
    assert f"2 of 1692 images missing: {splits['test'][0][0]}, {splits['test'][1][0]}" in problem
    assert check("dtd", root, incomplete=True) == []
    assert len(load("dtd", root, incomplete=True)) == 1690
    splits["test"][2][2] = "bandaged"
    (root / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(splits))
    [problem] = check("dtd", root, incomplete=True)
    assert "label 0 is 'bandaged', not 'banded'" in problem


def test_a_split_of_more_images_than_it_has_is_no_incomplete_one(dtd):
    root, images, splits = dtd
    shutil.copy(images / splits["test"][0][0], images / "more.jpg")
    splits["test"].append(["more.jpg", 0, "banded"])
    (root / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(splits))
    [problem] = check("dtd", root, incomplete=True)
    assert "lists 1693 test images, not 1692" in problem


def test_renamed_files_are_named(dtd, no_image_is_opened):
    root, images, _ = dtd
    names = sorted(path.name for path in (images / "woven").iterdir())
    for name in names:
        (images / "woven" / name).rename(images / "woven" / name.replace(".jpg", ".JPG"))
    problems = " ".join(check("dtd", root))
    assert "36 of 1692 images missing: woven/" in problems
    assert f"files beside them in no split, perhaps renamed: woven/{names[0][:-4]}.JPG" in (
        problems
    )


def test_files_of_other_splits_are_no_strangers(dtd, pictures):
    root, images, splits = dtd
    pictures.put_all(images, [key for key, label, _ in splits["train"] if label == 0])
    (images / splits["test"][0][0]).unlink()
    [problem] = check("dtd", root)
    assert "1 of 1692 images missing" in problem


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s["test"].pop(), "lists 1691 test images, not 1692"),
        (
            lambda s: s["test"].append(s["test"][0]),
            "test images listed twice: banded/banded_0060.jpg",
        ),
        (lambda s: s["test"][0].__setitem__(1, 99), r"label 99 \('banded'\) is not within 0..46"),
        (lambda s: s["test"][0].__setitem__(2, "bandaged"), "label 0 is 'bandaged', not 'banded'"),
        (lambda s: s["test"][0].pop(), "not one of CoOp's split files"),
        (lambda s: s.pop("test"), "has no test split, only train, val"),
        (lambda s: s.clear(), "has no test split, only nothing"),
    ],
)
def test_a_wrong_split_file_is_named(tmp_path, change, expected):
    splits = real_split("dtd")
    (tmp_path / "dtd" / "images").mkdir(parents=True)
    change(splits)
    file = tmp_path / "dtd" / "split_zhou_DescribableTextures.json"
    file.write_text(json.dumps(splits))
    problems = check("dtd", tmp_path)
    assert re.search(expected, " ".join(problems)), problems
    assert problems[0].startswith(f"{file}: ")


def test_another_label_order_is_named(dtd, no_image_is_opened):
    root, _, splits = dtd
    for lines in splits.values():
        for line in lines:
            line[1] = 46 - line[1]
    (root / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(splits))
    [problem] = check("dtd", root)
    assert "other label order than CoOp's: label 0 is 'zigzagged', not 'banded'" in problem
    test = survey("dtd", root).image_set  # the labels still mean what their names say
    assert test.class_names[test.labels[0]] == "banded"


def test_a_damaged_split_file_or_no_file(dtd):
    root, images, _ = dtd
    file = root / "dtd" / "split_zhou_DescribableTextures.json"
    file.write_text(file.read_text()[:1000])
    with pytest.raises(ValueError, match=r"split_zhou_DescribableTextures.json: not one of CoOp's"):
        load("dtd", root)
    file.unlink()
    images.rename(root / "elsewhere")
    assert check("dtd", root) == [f"{file}: not found", f"{images}: not found"]


def test_labels_are_integers(dtd):
    assert load("dtd", dtd[0]).labels.dtype == np.int64
