"""Generated views are read from a folder an image, behind the crops, and checked before work."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from soba.encode.generated import GeneratedViews
from soba.encode.preprocess import Preprocess
from soba.encode.views import Views


def maker(folder, generated=2):
    return GeneratedViews(Views(3, preprocess=Preprocess(size=16)), folder, generated)


@pytest.fixture
def folder(tmp_path):
    for number, shade in enumerate((10, 90, 200)):
        (tmp_path / "cat" / "1").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (shade, 0, 0)).save(tmp_path / "cat" / "1" / f"{number}.png")
    return tmp_path


def test_generated_images_stand_behind_the_views(folder):
    image = Image.linear_gradient("L")
    views = maker(folder)
    rows = views(image, "cat/1.jpg")
    assert rows.shape == (5, 3, 16, 16) and views.count == 5
    np.testing.assert_array_equal(rows[:3], views.views(image, "cat/1.jpg"))
    first = Preprocess(size=16)(Image.new("RGB", (20, 20), (10, 0, 0)))
    np.testing.assert_array_equal(rows[3], first)
    assert views.policy()["generated"] == 2


def test_an_image_without_enough_of_them_is_named_before_any_work(folder):
    maker(folder, 3).check(["cat/1.jpg"])
    with pytest.raises(ValueError, match=r"1 of 2 images have fewer than 2.*dog"):
        maker(folder).check(["cat/1.jpg", "dog/7.jpg"])
