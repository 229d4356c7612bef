"""Where a few labels come from: tables, class folders, or the images themselves."""

import shutil

import numpy as np
import pytest
from PIL import Image

import soba
from soba.datasets import load_images
from soba.encode.onnx import OnnxEncoder
from soba.encode.prompts import templates
from soba.studies.few_labels import Draw, of_features, of_images, read_few

NAMES = ("hot dog", "cat", "fox")


def table(path, *rows):
    path.write_text("\n".join(["path,label", *rows]) + "\n")
    return path


def test_a_table_may_leave_labels_open(tmp_path):
    few = read_few(table(tmp_path / "few.csv", "a.png,cat", "b.png,", "c.png,hot dog"), NAMES)
    assert few == {"a.png": 1, "c.png": 0}
    with pytest.raises(ValueError, match=r"few\.csv: labels that are not .*: wolf"):
        read_few(table(tmp_path / "few.csv", "a.png,wolf"), NAMES)
    (tmp_path / "few.csv").write_text("path,name\na.png,cat\n")
    with pytest.raises(ValueError, match="needs a column 'label', has path, name"):
        read_few(tmp_path / "few.csv", NAMES)
    (tmp_path / "few.json").write_text("{}")
    with pytest.raises(ValueError, match=r"labels are in class folders, or in a \.csv"):
        read_few(tmp_path / "few.json", NAMES)


def test_class_folders_may_be_some_of_the_classes(tmp_path):
    for name in ("hot_dog/1.png", "fox/2.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    few = read_few(tmp_path, NAMES)
    assert few == {str(tmp_path / "hot_dog/1.png"): 0, str(tmp_path / "fox/2.png"): 2}


def features(**more):
    return soba.FeatureSet(np.eye(4, 3, dtype=np.float32) + 1, np.eye(3), **more)


def test_a_feature_file_has_labels_by_key_by_row_or_by_chance(tmp_path):
    keyed = features(keys=("a", "b", "c", "d"), class_names=NAMES)
    assert of_features(keyed, None).labels.tolist() == [-1] * 4
    few = table(tmp_path / "few.csv", "d,fox", "b,cat", "a,")
    assert of_features(keyed, few).labels.tolist() == [-1, 1, -1, 2]
    with pytest.raises(ValueError, match="not among the keys of the features: e"):
        of_features(keyed, table(tmp_path / "few.csv", "e,fox"))
    rows = of_features(features(), table(tmp_path / "few.csv", "row 3,2"))
    assert rows.labels.tolist() == [-1, -1, -1, 2]
    labelled = features(labels=np.array([0, 1, 1, 1]))
    assert of_features(labelled, Draw(None)).labels.tolist() == [0, 1, 1, 1]
    assert (of_features(labelled, Draw(2)).labels >= 0).sum() == 3
    with pytest.raises(ValueError, match="no labels to draw from"):
        of_features(keyed, Draw(2))


@pytest.fixture(scope="module")
def tiny():
    return OnnxEncoder.tiny()


def test_copies_in_class_folders_are_the_images_they_are_copies_of(tiny, icon_folder, tmp_path):
    files = sorted(icon_folder.rglob("*.png"))
    names = sorted({file.parent.name for file in files})
    flat, few = tmp_path / "flat", tmp_path / "few"
    flat.mkdir()
    for place, file in enumerate(files):
        shutil.copy(file, flat / f"{place:02d}.png")
    stranger = few / names[0] / "not among them.png"
    for file in files[:3]:
        (few / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, few / file.parent.name)
    Image.new("RGB", (64, 64), "red").save(stranger)
    (flat / "broken.png").write_bytes(b"no image")
    done = []
    images = of_images(
        tiny, load_images(flat, names), few, templates("icon"), batch=8, step=done.append
    )
    assert len(images.features) == len(files) + 1  # the broken one is none, copies are no more
    assert done[-1] == len(files) + 5  # all were read
    labels = {images.key(row): images.labels[row] for row in np.flatnonzero(images.labels >= 0)}
    expected = {str(flat / f"{k:02d}.png"): names.index(files[k].parent.name) for k in range(3)}
    assert labels == expected | {str(stranger): 0}
    assert list(images.broken) == [str(flat / "broken.png")]


def test_labels_of_class_folders_are_drawn_and_tables_are_beside_their_images(
    tiny, icon_folder, tmp_path
):
    source = load_images(icon_folder)
    drawn = of_images(tiny, source, Draw(2, seed=1), templates("icon"))
    assert np.bincount(drawn.labels[drawn.labels >= 0]).tolist() == [2] * len(source.class_names)
    for row in np.flatnonzero(drawn.labels >= 0):
        folder = drawn.key(row).split("/")[-2].replace("_", " ")
        assert source.class_names[drawn.labels[row]] == folder
    copy = tmp_path / "icons"
    shutil.copytree(icon_folder, copy)
    file = sorted(copy.rglob("*.png"))[5]
    few = table(tmp_path / "few.csv", f"{file.relative_to(tmp_path)},{source.class_names[0]}")
    images = of_images(tiny, load_images(copy), few, templates("icon"))
    [row] = np.flatnonzero(images.labels >= 0)
    assert images.key(row) == str(file) and images.labels[row] == 0
    with pytest.raises(ValueError, match="no labels to draw from"):
        of_images(tiny, load_images([file], source.class_names), Draw(1), templates("icon"))
