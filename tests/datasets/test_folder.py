"""Anyone's images: class folders, flat folders, tables and lists."""

import os

import pytest

from soba.datasets import load_images
from soba.datasets.folder import from_csv, from_files, from_folder


@pytest.fixture
def pets(tmp_path, pictures):
    root = tmp_path / "pets"
    pictures.put_all(root, ["red_panda/b.png", "red_panda/deep/a.JPG", "cat/c.webp"])
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "cat" / "._c.webp").write_text("left by a Mac")
    (root / "nothing").mkdir()
    return root


def test_class_folders(pets):
    images = load_images(pets)
    assert images.name == "pets"
    assert images.class_names == ("cat", "red panda")
    assert images.keys == ("cat/c.webp", "red_panda/b.png", "red_panda/deep/a.JPG")
    assert images.labels.tolist() == [0, 1, 1]
    assert images.image(2).size == (8, 8)


def test_given_names_decide_the_order_and_may_have_no_images(pets):
    images = load_images(pets, ["Red Panda", "dog", "cat"])
    assert images.class_names == ("Red Panda", "dog", "cat")
    assert dict(zip(images.keys, images.labels.tolist(), strict=True)) == {
        "red_panda/b.png": 0,
        "red_panda/deep/a.JPG": 0,
        "cat/c.webp": 2,
    }
    with pytest.raises(ValueError, match="none of the class names: red_panda"):
        load_images(pets, ["cat", "dog"])


def test_two_folders_of_one_class_are_both_named(tmp_path, pictures):
    pictures.put_all(tmp_path / "food", ["hot_dog/a.png", "Hot dog/b.png", "cat/c.png"])
    with pytest.raises(ValueError, match="folders of one class 'hot dog': 'Hot dog', 'hot_dog'"):
        load_images(tmp_path / "food", ["hot dog", "cat"])


def test_links_that_lead_nowhere_are_listed_so_that_they_can_be_reported(pets):
    (pets / "cat" / "d.png").symlink_to(pets / "gone.png")
    assert "cat/d.png" in load_images(pets).keys


def unreadable(images):
    """What the set lists and cannot open, with the reason."""
    reasons = {}
    for index, key in enumerate(images.keys):
        try:
            images.image(index)
        except OSError as error:
            reasons[key] = error.strerror or str(error)
    return reasons


def test_what_cannot_be_read_is_listed_and_says_why(pets):
    (pets / "cat" / "circle.png").symlink_to("circle.png")
    (pets / "cat" / "gone.png").symlink_to("nowhere.png")
    os.mkfifo(pets / "cat" / "pipe.png")
    (pets / "cat" / "again").symlink_to("..")
    images = load_images(pets)
    assert images.class_names == ("cat", "red panda")
    assert len(images) == 3 + 4
    assert unreadable(images) == {
        "cat/again": "a folder without images of its own",
        "cat/circle.png": "Too many levels of symbolic links",
        "cat/gone.png": "No such file or directory",
        "cat/pipe.png": "a pipe, socket or device, not a file",
    }
    assert len(from_folder(pets, labelled=False)) == 3 + 4


def test_a_folder_that_may_not_be_listed_is_named(pets, monkeypatch):
    # Not by chmod: the tests may run as root, who may list anything.
    def refuse(function):
        def call(path):
            if os.path.basename(path) == "deep":
                raise PermissionError(13, "Permission denied", str(path))
            return function(path)

        return call

    monkeypatch.setattr(os, "scandir", refuse(os.scandir))
    monkeypatch.setattr(os, "listdir", refuse(os.listdir))
    images = load_images(pets)
    assert images.keys == ("cat/c.webp", "red_panda/b.png", "red_panda/deep")
    assert unreadable(images) == {"red_panda/deep": "Permission denied"}


def test_a_folder_that_vanishes_while_it_is_listed_is_named(pets, monkeypatch):
    real = os.scandir

    def scandir(path):
        if os.path.basename(path) == "deep":
            os.rename(path, pets.parent / "elsewhere")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert unreadable(load_images(pets)) == {"red_panda/deep": "No such file or directory"}


def test_folders_that_are_numbers_are_ordered_as_numbers(tmp_path, pictures):
    pictures.put_all(tmp_path / "n", [f"{i}/a.png" for i in range(12)])
    assert load_images(tmp_path / "n").keys[:3] == ("0/a.png", "1/a.png", "2/a.png")
    images = load_images(tmp_path / "n", [f"class {i}" for i in range(12)])
    assert (images.keys[10], images.class_names[10]) == ("10/a.png", "class 10")
    with pytest.raises(ValueError, match="none of the class names"):
        load_images(tmp_path / "n", ["class 0", "class 1"])


def test_a_flat_folder_has_no_labels(tmp_path, pictures):
    pictures.put_all(tmp_path / "flat", ["b.png", "a.jpg"])
    images = load_images(tmp_path / "flat", ["cat", "dog"])
    assert (images.keys, images.labels, images.class_names) == (
        ("a.jpg", "b.png"),
        None,
        ("cat", "dog"),
    )


def test_a_folder_with_both_is_refused_until_told(pets, pictures):
    pictures.put(pets / "loose.png")
    with pytest.raises(ValueError, match="both images and folders of images"):
        from_folder(pets)
    assert len(from_folder(pets, labelled=True)) == 3
    unlabelled = from_folder(pets, labelled=False)
    assert (len(unlabelled), unlabelled.labels) == (4, None)


def test_folders_without_images_are_refused(tmp_path, pictures):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: holds no images"):
        load_images(tmp_path / "empty")
    with pytest.raises(ValueError, match="nowhere: not a folder"):
        from_folder(tmp_path / "nowhere")


@pytest.fixture
def table(pets):
    def write(text):
        file = pets / "list.csv"
        file.write_text(text)
        return file

    return write


def test_a_table_with_names(table):
    images = load_images(table("path,label\nred_panda/b.png,red_panda\ncat/c.webp,cat\n"))
    assert images.name == "list"
    assert images.class_names == ("cat", "red panda")
    assert images.labels.tolist() == [1, 0]
    assert images.image(0).size == (8, 8)


def test_a_table_with_indices_or_names_of_given_classes(table):
    names = ["dog", "red panda", "cat"]
    indices = table("label,path\n1,red_panda/b.png\n2,cat/c.webp\n")
    assert load_images(indices, names).labels.tolist() == [1, 2]
    words = table("\ufeffpath,label\nred_panda/b.png,red panda\ncat/c.webp,cat\n")
    assert load_images(words, names).labels.tolist() == [1, 2]


def test_a_table_without_labels_and_with_a_root(table, pets, tmp_path):
    file = table("path\npets/cat/c.webp\n")
    images = from_csv(file, root=tmp_path)
    assert (images.keys, images.labels) == (("pets/cat/c.webp",), None)
    assert images.image(0).size == (8, 8)
    absolute = from_csv(table(f"path\n{pets / 'cat' / 'c.webp'}\n"))
    assert absolute.image(0).size == (8, 8)


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        ("file,label\na,b\n", None, "needs a column 'path', has file, label"),
        ("path,label\ncat/c.webp,\n", None, "no label in rows 1"),
        ("path,label\n,cat\n", None, "no path in rows 1"),
        ("path,label\ncat/c.webp,3\n", ["cat"], "classes, by name or by index: 3"),
        ("path,label\ncat/c.webp,cat\n", ["cat", "cat"], "by name or by index: cat"),
        ("path,label\ncat/x.png,cat\n", None, "list.csv: none of its images is there: cat/x.png"),
        ("path,label\ncat/c.webp,cat\ncat/c.webp,cat\n", None, "listed twice: cat/c.webp"),
        ("path,label\n", None, "holds no images"),
    ],
)
def test_a_wrong_table_is_refused(table, text, names, message):
    with pytest.raises(ValueError, match=message):
        load_images(table(text), names)


def test_rows_of_a_table_without_an_image_are_left_to_the_reader(table):
    images = load_images(table("path,label\ncat/x.png,cat\ncat/c.webp,cat\n"))
    assert images.labels.tolist() == [0, 0]
    assert unreadable(images) == {"cat/x.png": "No such file or directory"}


def test_a_table_that_is_no_text_is_named(pets):
    file = pets / "list.csv"
    file.write_bytes("path,label\ncat/c.webp,Käse\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"list\.csv: not UTF-8 text"):
        load_images(file)
    file.write_text("path,label\ncat/c.webp,cat\n" + "x" * 200_000)
    with pytest.raises(ValueError, match=r"list\.csv: not a table \(field larger"):
        load_images(file)


def test_lists_and_patterns(pets):
    images = load_images([pets / "cat" / "c.webp", f"{pets}/**/*.*"], ["cat"])
    assert len(images) == 3  # each once, and no text file
    assert images.keys[0] == str(pets / "cat" / "c.webp")
    assert images.image(1).size == (8, 8)
    assert len(load_images(str(pets / "*" / "*.png"))) == 1
    with pytest.raises(ValueError, match=r"no image found: .*\*.gif"):
        load_images(str(pets / "*.gif"))
    missing = [pets / f"{i}.png" for i in range(12)]
    with pytest.raises(ValueError, match=r"no image found: .*9.png and 2 more"):
        from_files(missing)
    some = from_files([pets / "*.gif", pets / "cat" / "c.webp", missing[0]])
    assert unreadable(some) == dict.fromkeys(
        [str(pets / "*.gif"), str(missing[0])], "No such file or directory"
    )
