import pytest
from image_trees import Pictures
from PIL import Image


@pytest.fixture
def pictures(tmp_path):
    return Pictures(tmp_path)


@pytest.fixture
def no_image_is_opened(monkeypatch):
    def refuse(*_):
        raise AssertionError("an image was opened")

    monkeypatch.setattr(Image, "open", refuse)
