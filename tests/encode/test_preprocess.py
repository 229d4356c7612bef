"""Pixels against torchvision's own transforms, and what is refused."""

import json

import numpy as np
import pytest
import torchvision_shim
from PIL import Image

from soba.encode.preprocess import OPENAI_MEAN, OPENAI_STD, Preprocess

torchvision_shim.install()
from torchvision import transforms  # noqa: E402

MODES = ["RGB", "L", "LA", "P", "RGBA", "CMYK", "1"]
SIZES = [(224, 224), (640, 480), (301, 225), (33, 17), (7, 300), (223, 225), (1, 1), (500, 31)]


def noise(mode, size, seed=0):
    """An image of random pixels; a palette of random colours for "P"."""
    rng = np.random.default_rng(seed)
    rgb = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8))
    if mode == "P":
        image = Image.fromarray(rng.integers(0, 256, size[::-1], np.uint8)).convert("P")
        image.putpalette(rng.integers(0, 256, 768, np.uint8).tobytes())
        return image
    if mode in ("LA", "RGBA"):
        image = rgb.convert(mode)
        image.putalpha(Image.fromarray(rng.integers(0, 256, size[::-1], np.uint8)))
        return image
    return rgb.convert(mode)


def torchvision_pixels(image, preprocess):
    def to_rgb(image):
        return image.convert("RGB")

    resize = [
        transforms.Resize(preprocess.size, transforms.InterpolationMode(preprocess.interpolation)),
        transforms.CenterCrop(preprocess.size),
    ]
    ordered = [to_rgb, *resize] if preprocess.convert == "first" else [*resize, to_rgb]
    normalise = [transforms.ToTensor(), transforms.Normalize(preprocess.mean, preprocess.std)]
    return transforms.Compose(ordered + normalise)(image).numpy()


@pytest.mark.parametrize("convert", ["first", "last"])
@pytest.mark.parametrize("mode", MODES)
def test_equals_torchvision_bit_for_bit(mode, convert):
    for seed, size in enumerate(SIZES):
        for side in (224, 63):
            preprocess = Preprocess(size=side, convert=convert)
            image = noise(mode, size, seed)
            pixels = preprocess(image)
            assert pixels.dtype == np.float32 and pixels.flags.c_contiguous
            np.testing.assert_array_equal(pixels, torchvision_pixels(image, preprocess))


def test_equals_torchvision_on_random_sizes():
    rng = np.random.default_rng(3)
    for seed in range(60):
        size = tuple(int(side) for side in rng.integers(2, 90, 2))
        image = noise(MODES[seed % len(MODES)], size, seed)
        preprocess = Preprocess(size=int(rng.integers(1, 70)))
        np.testing.assert_array_equal(preprocess(image), torchvision_pixels(image, preprocess))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "lanczos"])
def test_other_filters(interpolation):
    preprocess = Preprocess(
        size=48, mean=(0.5, 0.4, 0.3), std=(0.5, 0.2, 1), interpolation=interpolation
    )
    image = noise("RGB", (100, 77))
    np.testing.assert_array_equal(preprocess(image), torchvision_pixels(image, preprocess))


def test_every_byte_is_normalised_as_torch_does():
    ramp = np.zeros((256, 256, 3), np.uint8) + np.arange(256, dtype=np.uint8)[:, None]
    image, preprocess = Image.fromarray(ramp), Preprocess(size=256)
    np.testing.assert_array_equal(preprocess(image), torchvision_pixels(image, preprocess))


def test_converting_first_smooths_what_has_a_palette():
    checkers = Image.fromarray(np.indices((448, 448)).sum(0).astype(np.uint8) % 2 * 255)
    first = np.asarray(Preprocess().square(checkers.convert("1")))
    last = np.asarray(Preprocess(convert="last").square(checkers.convert("1")))
    assert first[5:-5, 5:-5].min() > 100 and first[5:-5, 5:-5].max() < 155
    assert set(np.unique(last)) <= {0, 255}


def test_orientation_is_left_as_stored(tmp_path):
    image = noise("RGB", (40, 20))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as turned:
        assert turned.getexif()[0x0112] == 6
        np.testing.assert_array_equal(Preprocess(size=16)(turned), Preprocess(size=16)(image))


def test_the_image_is_not_changed():
    image = noise("P", (30, 20))
    before = image.tobytes()
    Preprocess(size=8)(image)
    assert (image.mode, image.tobytes()) == ("P", before)


def test_as_dict_is_plain_and_complete():
    preprocess = Preprocess(size=32, convert="last")
    values = json.loads(json.dumps(preprocess.as_dict()))
    assert values["mean"] == list(OPENAI_MEAN) and values["std"] == list(OPENAI_STD)
    rebuilt = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    assert Preprocess(**rebuilt) == preprocess


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "size"),
        ({"std": (1.0, 0.0, 1.0)}, "std"),
        ({"mean": (0.5,)}, "mean"),
        ({"interpolation": "cubic"}, "bicubic"),
        ({"convert": "never"}, "convert"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        Preprocess(**wrong)


def test_images_too_thin_or_empty():
    for size in [(1, 101), (1000, 3), (0, 4)]:
        with pytest.raises(ValueError, match=f"{size[0]} x {size[1]}"):
            Preprocess(size=8)(Image.new("RGB", size))
    assert Preprocess(size=8)(Image.new("RGB", (1, 100))).shape == (3, 8, 8)


def test_normalise_wants_a_square():
    with pytest.raises(ValueError, match="not L of 8 x 8"):
        Preprocess(size=8).normalise(Image.new("L", (8, 8)))
    with pytest.raises(ValueError, match="not RGB of 8 x 9"):
        Preprocess(size=8).normalise(Image.new("RGB", (8, 9)))
