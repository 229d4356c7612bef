import os

import numpy as np
import pytest
import torch
from PIL import Image

from soba.encode.images import list_images
from soba.encode.pictures import NoPicture, image_of_pixels


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for place, name in enumerate(("b.png", "a.jpg", "deep/c.png", "deep/er/d.png")):
        Image.new("RGB", (8, 8), (60 * place, 0, 0)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "list.csv").write_text("path,label\ndeep/c.png,x\na.jpg,\n")
    return tmp_path


def names(images):
    return [picture.name for picture in list_images(images)]


def test_whatever_a_person_points_at(folder, monkeypatch):
    monkeypatch.chdir(folder)
    everything = ["a.jpg", "b.png", "deep/c.png", "deep/er/d.png"]
    assert names(".") == everything
    assert names(folder) == [str(folder / name) for name in everything]
    assert names("**/*.png") == ["b.png", "deep/c.png", "deep/er/d.png"]
    assert names("list.csv") == ["deep/c.png", "a.jpg"]  # whatever its labels
    assert names("b.png") == ["b.png"]
    with Image.open("b.png") as image:
        nested = iter([["b.png", ("deep",)], np.array(["a.jpg"]), image])
        assert names(nested) == ["b.png", "deep/c.png", "deep/er/d.png", "a.jpg", "b.png"]
    assert names([]) == []


def test_a_pattern_of_folders_stands_for_the_images_below_them(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "other.png").mkdir()  # a folder, whatever its name
    (folder / "other.png" / "e.png").write_bytes((folder / "b.png").read_bytes())
    assert names("d*p") == names("deep") == ["deep/c.png", "deep/er/d.png"]
    assert names("*e*") == ["deep/c.png", "deep/er/d.png", "other.png/e.png"]
    assert names("**/") == names("*e*")  # a folder in a matched one adds nothing
    # Where images match, a pattern is about them.
    assert names("*") == ["a.jpg", "b.png"]
    for empty in ("none", "nothing"):
        (folder / empty).mkdir()
    [picture] = list_images("no*ing")
    assert picture.problem == "matches folders only, and they hold no images"
    [picture] = list_images("no?e*")
    assert picture.name == "no?e*" and isinstance(picture, NoPicture)


def test_what_is_no_image_is_listed_with_what_is_wrong(folder):
    (folder / "empty").mkdir()
    (folder / "rows.csv").write_text("path,label\n,x\na.jpg,y\n")
    problems = {
        picture.name: picture.problem
        for picture in list_images([folder / "empty", folder / "rows.csv", 3])
        if isinstance(picture, NoPicture)
    }
    assert problems == {
        str(folder / "empty"): "holds no images",
        f"{folder / 'rows.csv'}, row 1": "no path",
        "image 3": "an image is a path, a PIL image or an array, not 3",
    }


def test_the_content_makes_the_id(folder):
    def content_id(image):
        [picture] = list_images([image])
        picture.open()
        assert 0 <= picture.content_id < 2**63
        return picture.content_id

    file = folder / "b.png"
    os.link(file, folder / "link.png")
    assert content_id(file) == content_id(folder / "link.png") == content_id(file.read_bytes())
    with Image.open(file) as image:
        image.load()
    assert content_id(image) == content_id(np.asarray(image)) == content_id(image.copy())
    red, blue = (Image.new("P", (4, 4)) for _ in range(2))
    red.putpalette([255, 0, 0])
    blue.putpalette([0, 0, 255])
    others = [image, image.convert("L"), image.resize((16, 4)), Image.new("RGB", (8, 8), "red")]
    assert len({content_id(other) for other in [file, red, blue, *others]}) == 7


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 1), (9, 7, 3), (9, 7, 4), (3, 9, 7), (1, 9, 7)])
def test_pixels_of_every_shape(shape):
    pixels = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    image = image_of_pixels(pixels)
    assert image.size == (7, 9)
    assert image_of_pixels(torch.from_numpy(pixels)).tobytes() == image.tobytes()
    assert image_of_pixels(pixels / np.float32(255)).tobytes() == image.tobytes()


def test_pixels_lie_where_they_were():
    pixels = np.random.default_rng(0).integers(0, 255, (3, 9, 7), np.uint8)
    expected = tuple(int(value) for value in pixels[:, 4, 2])
    assert image_of_pixels(pixels).getpixel((2, 4)) == expected
    assert image_of_pixels(pixels.transpose(1, 2, 0)).getpixel((2, 4)) == expected
    half = torch.from_numpy(pixels).to(torch.bfloat16) / 255
    assert image_of_pixels(half).getpixel((2, 4)) == pytest.approx(expected, abs=2)


def test_where_both_ends_could_be_channels_arrays_end_and_tensors_begin_with_them():
    pixels = np.random.default_rng(0).integers(0, 255, (3, 9, 3), np.uint8)
    assert image_of_pixels(pixels).size == (9, 3)
    assert image_of_pixels(torch.from_numpy(pixels)).size == (3, 9)


@pytest.mark.parametrize(
    ("pixels", "why"),
    [
        (np.zeros((5, 6, 7), np.uint8), "no axis of 3 channels"),
        (np.zeros((0, 6, 3), np.uint8), r"shape \(0, 6, 3\)"),
        (np.zeros(6, np.uint8), r"shape \(6,\)"),
        (np.full((5, 6), np.nan), "between 0, black, and 1, white"),
        (np.full((5, 6, 3), 255.0), "between 0, black, and 1, white"),
        (np.zeros((5, 6), np.int64), "type int64"),
        (np.array([["a", "b"]]), "type <U1"),
    ],
)
def test_pixels_that_mean_nothing(pixels, why):
    with pytest.raises(ValueError, match=why):
        image_of_pixels(pixels)
