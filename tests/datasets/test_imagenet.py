"""The five ImageNet sets in both layouts, and the traps of their folders."""

import shutil

import pytest
from image_trees import imagenet_tree

from soba.datasets import check, class_names, load, survey
from soba.datasets._facts import imagenet_classes
from soba.datasets.imagenet import folder_names

pytestmark = pytest.mark.usefixtures("no_image_is_opened")
STRING_ORDER = sorted(map(str, range(1000)))  # 0, 1, 10, 100, 101, ...
WNIDS = [row.wnid for row in imagenet_classes()]


@pytest.mark.parametrize(
    "name",
    [
        "imagenet-a",
        "imagenet-v2",
        "imagenet-r",
        pytest.param("imagenet", marks=pytest.mark.long),
        pytest.param("imagenet-sketch", marks=pytest.mark.long),
    ],
)
def test_whole_sets_load(name, tmp_path, pictures):
    place = imagenet_tree(tmp_path, pictures, name)
    assert check(name, tmp_path) == []
    images = load(name, tmp_path)
    assert images.root == place
    assert images.class_names == class_names(name)
    folders = folder_names(name)
    assert [key.split("/")[0] for key in images.keys] == [folders[i] for i in images.labels]


@pytest.mark.parametrize("layout", [0, 1], ids=["coop", "tpt"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("imagenet", 50000),
        ("imagenet-a", 7500),
        ("imagenet-v2", 10000),
        ("imagenet-r", 30000),
        ("imagenet-sketch", 50889),
    ],
)
def test_a_miniature_is_found_in_either_layout(name, expected, layout, tmp_path, pictures):
    folders = folder_names(name)[100:112]
    place = imagenet_tree(tmp_path, pictures, name, layout=layout, images=24, folders=folders)
    problems = check(name, tmp_path)
    classes = len(folder_names(name))
    assert f"{place}: {classes - 12} of {classes} classes missing or empty: " in problems[0]
    assert problems[1] == f"{place}: holds 24 images, not {expected}"
    images = survey(name, tmp_path).image_set
    assert images.labels.tolist() == [label for label in range(100, 112) for _ in range(2)]
    assert images.class_names == class_names(name)


def test_names_of_classes_are_those_of_their_ids():
    by_wnid = {row.wnid: row.name for row in imagenet_classes()}
    assert (by_wnid["n01443537"], by_wnid["n02119789"]) == ("goldfish", "kit fox")
    for name in ("imagenet-a", "imagenet-r"):
        assert len(class_names(name)) == 200
        assert class_names(name) == tuple(by_wnid[wnid] for wnid in folder_names(name))


def test_v2_labels_are_numbers_not_positions(tmp_path, pictures):
    imagenet_tree(tmp_path, pictures, "imagenet-v2", images=5, folders=["0", "1", "10", "2", "100"])
    images = survey("imagenet-v2", tmp_path).image_set
    assert [key.split("/")[0] for key in images.keys] == ["0", "1", "2", "10", "100"]
    assert images.labels.tolist() == [0, 1, 2, 10, 100]


def test_v2_in_string_order_is_named(tmp_path, pictures):
    """The i-th folder in string order, renamed to "i", as a copy made through ImageFolder is."""
    imagenet_tree(
        tmp_path,
        pictures,
        "imagenet-v2",
        images=20,
        folders=folder_names("imagenet-v2")[:20],
        file=lambda label, number: f"{WNIDS[int(STRING_ORDER[label])]}_{number}.jpeg",
    )
    problems = check("imagenet-v2", tmp_path)
    assert "the folders are in string order (0, 1, 10, 100, 101, ...)" in problems[0]
    assert f"2/{WNIDS[10]}_2.jpeg (a folder of {WNIDS[2]})" in problems[0]


def test_v2_class_list_in_string_order_is_named(tmp_path, pictures):
    imagenet_tree(tmp_path, pictures, "imagenet-v2", images=1, folders=["0"])
    file = tmp_path / "imagenetv2" / "classnames.txt"
    lines = file.read_text().splitlines()

    def problems_of(listed):
        file.write_text("\n".join(listed))
        return [problem for problem in check("imagenet-v2", tmp_path) if str(file) in problem]

    assert problems_of(lines) == []
    [problem] = problems_of(lines[int(i)] for i in STRING_ORDER)
    assert problem.startswith(f"{file}: the classes are in string order (0, 1, 10, ")
    [problem] = problems_of([*lines[:7], *lines[8:]])
    assert "not ImageNet's 1,000 in label order (first in line 8)" in problem
    file.write_bytes(b"n01440764 t\xeanch\n")
    assert f"{file}: not UTF-8 text" in check("imagenet-v2", tmp_path)
    [problem] = problems_of(lines[:900])
    assert "(900 lines)" in problem


@pytest.mark.parametrize(
    ("folders", "hint"),
    [
        ([WNIDS[int(i)] for i in STRING_ORDER[:20]], "renaming them in string order"),
        ([f"{i:04d}" for i in range(20)], "renamed with leading zeros"),
        ([str(i) for i in range(981, 1001)], "they count from 1"),
        ([f"class {i}" for i in range(20)], "the archive's are 0 to 999"),
    ],
)
def test_v2_folders_that_are_not_0_to_999(folders, hint, tmp_path, pictures):
    imagenet_tree(tmp_path, pictures, "imagenet-v2", images=20, folders=folders)
    with pytest.raises(ValueError, match="folders that are no class of imagenet-v2") as caught:
        load("imagenet-v2", tmp_path)
    assert hint in str(caught.value)


def test_a_missing_class_is_named(tmp_path, pictures):
    place = imagenet_tree(tmp_path, pictures, "imagenet-r", images=400)
    shutil.rmtree(place / "n01443537")
    problems = check("imagenet-r", tmp_path)
    assert "1 of 200 classes missing or empty: n01443537 (goldfish)" in problems[0]
    images = survey("imagenet-r", tmp_path).image_set
    assert set(images.labels.tolist()) == set(range(1, 200))  # no label has moved


def test_folders_of_all_imagenet_where_200_belong(tmp_path, pictures):
    imagenet_tree(tmp_path, pictures, "imagenet-a", images=20, folders=WNIDS[:20])
    problems = check("imagenet-a", tmp_path)
    assert "folders that are no class of imagenet-a: n01440764, " in problems[0]
    assert "and 5 more; they are ImageNet's, of which imagenet-a has only 200" in problems[0]


def test_the_other_200_classes(tmp_path, pictures):
    imagenet_tree(tmp_path, pictures, "imagenet-a", images=400, folders=folder_names("imagenet-r"))
    problems = check("imagenet-a", tmp_path)
    assert "these are the 200 classes of imagenet-r" in problems[0]


def test_validation_images_that_were_never_sorted(tmp_path, pictures):
    for i in range(12):
        pictures.put(tmp_path / "imagenet/images/val" / f"ILSVRC2012_val_{i:08d}.JPEG")
    problems = check("imagenet", tmp_path)
    assert "holds 12 images and no class folders: ILSVRC2012_val_00000000.JPEG" in problems[0]
    assert "and 2 more" in problems[0]
    with pytest.raises(ValueError, match="no test images found"):
        load("imagenet", tmp_path)


def test_renamed_files_and_wrong_folders(tmp_path, pictures):
    place = imagenet_tree(
        tmp_path,
        pictures,
        "imagenet-sketch",
        images=10,
        folders=WNIDS[:10],
        file=lambda label, number: f"{WNIDS[label]}_{number}.JPEG",
    )
    (place / WNIDS[3] / f"{WNIDS[3]}_3.JPEG").rename(place / WNIDS[4] / f"{WNIDS[3]}_3.JPEG")
    (place / WNIDS[5] / f"{WNIDS[5]}_5.JPEG").rename(place / WNIDS[5] / "5.JPEG.part")
    problems = " ".join(check("imagenet-sketch", tmp_path))
    assert f"files named after another class: {WNIDS[4]}/{WNIDS[3]}_3.JPEG" in problems
    assert "in string order" not in problems
    assert f"files without an image's name: {WNIDS[5]}/5.JPEG.part" in problems
    assert "992 of 1000 classes missing or empty" in problems


def test_a_stray_file_is_remarked_upon_and_stops_nothing(tmp_path, pictures):
    place = imagenet_tree(tmp_path, pictures, "imagenet-a")
    (place / folder_names("imagenet-a")[0] / "Thumbs.db").write_text("left by Windows")
    (place / folder_names("imagenet-a")[1] / ".DS_Store").write_text("left by a Mac")
    assert check("imagenet-a", tmp_path) == []
    with pytest.warns(UserWarning, match=r"files without an image's name: n01498041/Thumbs.db$"):
        assert len(load("imagenet-a", tmp_path)) == 7500


def test_a_missing_image_can_be_done_without(tmp_path, pictures):
    place = imagenet_tree(tmp_path, pictures, "imagenet-a")
    folder = place / folder_names("imagenet-a")[0]
    first, second = sorted(folder.iterdir())[:2]
    first.unlink()
    second.unlink()
    second.symlink_to(tmp_path / "nowhere.jpg")
    problems = check("imagenet-a", tmp_path)
    assert f"{place}: holds 7498 images, not 7500" in problems
    assert f"{place}: links that lead nowhere: {folder.name}/{second.name}" in problems
    assert check("imagenet-a", tmp_path, incomplete=True) == []
    assert len(load("imagenet-a", tmp_path, incomplete=True)) == 7498
    with pytest.raises(ValueError, match=r"incomplete=True goes on with the 7498 images"):
        load("imagenet-a", tmp_path)


def test_what_is_wrong_stays_wrong_in_an_incomplete_set(tmp_path, pictures):
    place = imagenet_tree(tmp_path, pictures, "imagenet-v2", images=20, folders=list("01"))
    pictures.put(place / "1" / f"{WNIDS[7]}_0.JPEG")
    problems = check("imagenet-v2", tmp_path, incomplete=True)
    assert len(problems) == 2
    assert "files named after another class" in problems[0]
    assert problems[1] == f"{place}: classes that have more than 10 images: 1 (11)"
    with pytest.raises(ValueError, match="files named after another class"):
        load("imagenet-v2", tmp_path, incomplete=True)
    (tmp_path / "none" / "imagenet-a").mkdir(parents=True)
    assert (
        "200 of 200 classes missing" in check("imagenet-a", tmp_path / "none", incomplete=True)[0]
    )


def test_uneven_classes_are_counted(tmp_path, pictures):
    place = imagenet_tree(tmp_path, pictures, "imagenet-v2", images=50, folders=list("01234"))
    (place / "3" / "image_3.JPEG").unlink()
    problems = check("imagenet-v2", tmp_path)
    assert problems[1:] == [
        f"{place}: holds 49 images, not 10000",
        f"{place}: classes that have fewer than 10 images: 3 (9)",
    ]


def test_the_listing_of_tda_drops_sh(tmp_path, pictures):
    def file(label, number):
        word = "mushroom" if number % 3 == 0 else "lemon"
        return f"0.01_{word} _ {word}_{number}.jpg"

    folders = folder_names("imagenet-a")[:10]
    imagenet_tree(tmp_path, pictures, "imagenet-a", images=300, folders=folders, file=file)
    assert len(survey("imagenet-a", tmp_path).image_set) == 300
    listed = survey("imagenet-a", tmp_path, tda_listing=True).image_set
    assert listed.name == "imagenet-a-tda-listing"
    assert len(listed) == 200
    assert not any("sh" in key for key in listed.keys)
    with pytest.raises(ValueError, match="imagenet: the official TDA does not list its folders"):
        survey("imagenet", tmp_path, tda_listing=True)


def test_the_train_split_of_imagenet(tmp_path, pictures):
    for wnid in WNIDS[:10]:
        pictures.put(tmp_path / "imagenet/images/train" / wnid / f"{wnid}_1.JPEG")
    [problem] = check("imagenet", tmp_path, "train")
    assert "990 of 1000 classes missing or empty" in problem
    assert len(survey("imagenet", tmp_path, "train").image_set) == 10
    with pytest.raises(ValueError, match="has no val split"):
        load("imagenet", tmp_path, "val")
    with pytest.raises(ValueError, match="imagenet-a: has only a test split"):
        load("imagenet-a", tmp_path, "train")
