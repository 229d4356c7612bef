import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from soba.datasets import icons as module
from soba.datasets.icons import DOMAINS, SHIFTED, IconSet, class_names, drawings_of, icons, mask

FAMILIES = {
    "awesome": ("fa5", "fa6"),
    "material": ("mdi",),
    "phosphor": ("phosphor-regular",),
    "remix": ("remix-fill", "remix-line"),
}


def drawn_by(name):
    return [
        f for f, styles in FAMILIES.items() if any(module.exists(f"{s}/{name}") for s in styles)
    ]


def test_classes_are_what_three_of_four_families_draw():
    names = class_names()
    assert len(names) == len(set(names)) == 224
    assert list(names) == sorted(names)
    by_count = [len(drawn_by(name)) for name in names]
    assert min(by_count) == 3
    assert by_count.count(4) == 84
    assert len({module.readable(name) for name in names}) == 224


def test_five_domains_of_other_hands():
    assert list(DOMAINS) == ["source", "v2", "sketch", "rendition", "hard"]
    assert SHIFTED == ("v2", "sketch", "rendition", "hard")
    styles = {d: {key.partition("/")[0] for key in drawings_of(d)} for d in DOMAINS}
    assert styles["source"] == {"fa5", "fa6", "mdi"}
    for domain in SHIFTED:
        assert not styles[domain] & styles["source"]


@pytest.mark.parametrize("domain", ["source", *SHIFTED])
def test_every_drawing_of_a_domain_shows_something(domain):
    drawings = drawings_of(domain)
    assert len(drawings) > 0
    assert len(set(drawings)) == len(drawings)
    for drawing in drawings:
        shape = np.asarray(mask(drawing))
        assert shape.max() > 200, drawing
        assert 0.01 < (shape > 127).mean() < 0.99, drawing


@pytest.mark.parametrize("domain", ["source", "v2", "sketch", "rendition"])
def test_a_set_is_labelled_by_what_it_draws(domain):
    images = icons(domain, per_class=3)
    assert isinstance(images, IconSet)
    assert len(images) == len(images.labels) == 3 * len(images.class_names)
    assert len(set(images.keys)) == len(images)
    for key, label in zip(images.keys, images.labels, strict=True):
        assert module.readable(key.split("/")[1]) == images.class_names[label]
    image = images.image(len(images) - 1)
    assert (image.mode, image.size) == ("RGB", (96, 96))
    assert np.asarray(image).std() > 5


def test_the_same_bits_every_time_and_in_every_process():
    images = icons("rendition", per_class=2)
    bits = {i: images.image(i).tobytes() for i in (0, 7, 101)}
    module.mask.cache_clear()
    again = icons("rendition", per_class=2)
    assert all(again.image(i).tobytes() == bits[i] for i in reversed(bits))
    code = """
import hashlib, json, sys
from soba.datasets.icons import icons
images = icons("rendition", per_class=2)
print(json.dumps({i: hashlib.sha256(images.image(i).tobytes()).hexdigest() for i in (101, 0)}))
toolkits = ("qtawesome", "qtpy", "pyqt", "pyside")
print([name for name in sys.modules if name.lower().startswith(toolkits)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    hashes, imported = done.stdout.splitlines()
    for index, digest in json.loads(hashes).items():
        assert hashlib.sha256(bits[int(index)]).hexdigest() == digest
    assert imported == "[]"


def test_more_images_leave_the_first_ones_as_they_are():
    few, many = icons("sketch", per_class=2), icons("sketch", per_class=5)
    assert set(few.keys) < set(many.keys)
    index = {key: i for i, key in enumerate(many.keys)}
    for i in (0, 3, 200):
        assert few.image(i).tobytes() == many.image(index[few.keys[i]]).tobytes()
        assert few.class_names[few.labels[i]] == many.class_names[many.labels[index[few.keys[i]]]]


def test_seed_size_and_number_change_the_picture():
    base = icons("v2", per_class=2)
    other = icons("v2", per_class=2, seed=1)
    assert base.keys == other.keys
    assert base.image(0).tobytes() != other.image(0).tobytes()
    assert base.image(0).tobytes() != base.image(1).tobytes()
    assert icons("v2", size=32).image(0).size == (32, 32)
    # What tells the sets apart where keys do not.
    assert len({base.recipe, other.recipe, icons("v2", size=32).recipe}) == 3
    assert base.recipe == icons("v2", per_class=5).recipe


def test_bad_arguments():
    with pytest.raises(ValueError, match="no icon domain 'photos'; there are: source, v2"):
        icons("photos")
    with pytest.raises(ValueError, match="per_class must be at least 1"):
        icons("v2", per_class=0)
    with pytest.raises(ValueError, match="no drawing 'mdi/unheard-of'"):
        mask("mdi/unheard-of")


def test_without_the_fonts_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    module._folder.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"pip install 'soba-tta\[demo\]'"):
            module._folder()
    finally:
        module._folder.cache_clear()
