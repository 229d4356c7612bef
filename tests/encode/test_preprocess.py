"""Pixels against torchvision's own transforms, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest
import torchvision_shim
from PIL import Image

from soba.encode.preprocess import OPENAI_MEAN, OPENAI_STD, RESIZES, Preprocess, eight_bits

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
    """Bits can be asked for: three operations a pixel, each rounded once, and no sums."""

    def to_rgb(image):
        return image.convert("RGB")

    size = preprocess.size
    filtered = transforms.InterpolationMode(preprocess.interpolation)
    steps = [
        to_rgb,
        transforms.Resize((size, size) if preprocess.resize == "squash" else size, filtered),
        transforms.CenterCrop(size),
        transforms.ToTensor(),
        transforms.Normalize(preprocess.mean, preprocess.std),
    ]
    return transforms.Compose(steps)(image).numpy()


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("mode", MODES)
def test_equals_torchvision_bit_for_bit(mode, resize):
    for seed, size in enumerate(SIZES):
        for side in (224, 63):
            preprocess = Preprocess(size=side, resize=resize)
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
    for resize in RESIZES:
        square = np.asarray(Preprocess(resize=resize).square(checkers.convert("1")))
        assert square[5:-5, 5:-5].min() > 100 and square[5:-5, 5:-5].max() < 155


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


def smooth(size=(60, 45)):
    """A greyscale picture of all eight-bit values."""
    return noise("L", (7, 5)).resize(size, Image.Resampling.BICUBIC)


def netpbm(path, grey):
    """A binary .pgm of 16 bits, which Pillow opens as mode "I"."""
    header = f"P5 {grey.width} {grey.height} 65535\n".encode()
    path.write_bytes(header + (np.asarray(grey) * np.uint16(257)).astype(">u2").tobytes())


def stored(kind, path, grey):
    """Writes the picture as a file of more than eight bits per pixel."""
    if kind == "pgm":
        return netpbm(path, grey)
    values = np.asarray(grey)
    array, suffix = {
        "png": (values * np.uint16(257), "png"),
        "tiff": (values * np.uint16(257), "tiff"),
        "big-endian tiff": ((values * np.uint16(257)).astype(">u2"), "tiff"),
        "int tiff of 8 bits": (values.astype("<i4"), "tiff"),
        "int tiff of 16 bits": (values.astype("<i4") * 257, "tiff"),
        "int tiff of 24 bits": (values.astype("<i4") * 65793, "tiff"),
        "float tiff to 1": ((values / 255).astype("<f4"), "tiff"),
        "float tiff to 255": (values.astype("<f4"), "tiff"),
        "float tiff to 65535": (values.astype("<f4") * 257, "tiff"),
        "float tiff from -1 to 1": ((values / 127.5 - 1).astype("<f4"), "tiff"),
    }[kind]
    Image.fromarray(array).save(path, suffix)


DEEP = [
    ("png", "I;16"),
    ("pgm", "I"),
    ("tiff", "I;16"),
    ("big-endian tiff", "I;16B"),
    ("int tiff of 8 bits", "I"),
    ("int tiff of 16 bits", "I"),
    ("int tiff of 24 bits", "I"),
    ("float tiff to 1", "F"),
    ("float tiff to 255", "F"),
    ("float tiff to 65535", "F"),
    ("float tiff from -1 to 1", "F"),
]


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize(("kind", "mode"), DEEP)
def test_greyscale_of_more_than_eight_bits_is_scaled(kind, mode, resize, tmp_path):
    grey = smooth()
    extremes = np.asarray(grey).copy()
    extremes[0, :2] = 0, 255
    grey = Image.fromarray(extremes)
    stored(kind, tmp_path / "deep", grey)
    with Image.open(tmp_path / "deep") as deep:
        # Pillow before 11.0 opens 16-bit PNG as "I".
        assert deep.mode in ({mode, "I"} if kind == "png" else {mode})
        square = Preprocess(size=32, resize=resize).square(deep)
    twin = Preprocess(size=32, resize=resize).square(grey)
    difference = np.asarray(square).astype(int) - np.asarray(twin)
    assert np.abs(difference).max() <= 1


@pytest.mark.parametrize("kind", ["png", "pgm", "tiff"])
def test_sixteen_bits_are_not_brightened(kind, tmp_path):
    dark = smooth().point(lambda value: value // 128)  # nothing above 257 of 65,535
    stored(kind, tmp_path / "dark", dark)
    with Image.open(tmp_path / "dark") as deep:
        assert np.asarray(eight_bits(deep)).max() == 1


def test_floats_that_overshoot_stay_bright():
    for white in (1.0, 255.0):
        values = np.linspace(0, 1.3 * white, 60, dtype=np.float32).reshape(6, 10)
        grey = np.asarray(eight_bits(Image.fromarray(values)))
        expected = np.linspace(0, 255, 60).reshape(6, 10)
        np.testing.assert_allclose(grey, expected, atol=1)


def test_floats_that_are_no_numbers():
    values = np.array([[np.nan, 0.0, 0.5], [1.0, np.inf, -np.inf]], np.float32)
    grey = np.asarray(eight_bits(Image.fromarray(values)))
    np.testing.assert_array_equal(grey, [[0, 0, 128], [255, 255, 0]])
    with pytest.raises(ValueError, match="finite"):
        eight_bits(Image.fromarray(np.full((2, 2), np.nan, np.float32)))
    for constant in (-3.0, 0.0):
        flat = Image.fromarray(np.full((2, 2), constant, np.float32))
        np.testing.assert_array_equal(np.asarray(eight_bits(flat)), 0)


def test_as_dict_is_plain_and_tells_all_settings_apart():
    different = [
        Preprocess(),
        Preprocess(size=32),
        Preprocess(mean=(0.5, 0.4, 0.3)),
        Preprocess(std=(0.5, 0.4, 0.3)),
        Preprocess(interpolation="bilinear"),
        Preprocess(resize="squash"),
        Preprocess(resized=256),
        Preprocess(crop="floored"),
    ]
    texts = {json.dumps(preprocess.as_dict(), sort_keys=True) for preprocess in different}
    assert len(texts) == len(different)
    values = json.loads(json.dumps(Preprocess(size=32).as_dict()))
    assert values["mean"] == list(OPENAI_MEAN) and values["std"] == list(OPENAI_STD)


def test_as_dict_is_what_fingerprints_of_earlier_files_were_made_of():
    shortest = {"size": 32, "mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bicubic"}
    shortest |= {"convert": "first"}
    preprocess = Preprocess(32, (0, 0, 0), (1, 1, 1))
    assert preprocess.as_dict() == shortest
    squashed = dataclasses.replace(preprocess, resize="squash")
    assert squashed.as_dict() == shortest | {"resize": "squash"}


def test_settings_in_open_clips_words():
    assert Preprocess.from_config({}) == Preprocess()
    assert Preprocess.from_config({"size": None, "resize_mode": None}, 64) == Preprocess(64)
    words = {"size": [32, 32], "mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bilinear"}
    preprocess = Preprocess.from_config(words | {"resize_mode": "squash"}, 64)
    assert preprocess == Preprocess(32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "bilinear", "squash")
    for wrong, problem in (
        ({"size": [32, 48]}, "square, not 32 x 48"),
        ({"resize_mode": "longest"}, "shortest or squash, not 'longest'"),
        ({"mean": [0.5]}, "not enough values"),
        ({"interpolation": "random"}, "not 'random'"),
    ):
        with pytest.raises(ValueError, match=problem):
            Preprocess.from_config(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "size"),
        ({"std": (1.0, 0.0, 1.0)}, "std"),
        ({"mean": (0.5,)}, "mean"),
        ({"interpolation": "cubic"}, "bicubic"),
        ({"resize": "longest"}, "shortest or squash"),
        ({"resized": 200}, "resized to 200, an image has no 224 pixels"),
        ({"crop": "ceiled"}, "rounded or floored"),
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
    squash = Preprocess(size=8, resize="squash")
    assert squash(Image.new("RGB", (1, 1000))).shape == (3, 8, 8)  # nothing is made larger first
    with pytest.raises(ValueError, match="0 x 4"):
        squash(Image.new("RGB", (0, 4)))


def test_normalise_wants_a_square():
    with pytest.raises(ValueError, match="not L of 8 x 8"):
        Preprocess(size=8).normalise(Image.new("L", (8, 8)))
    with pytest.raises(ValueError, match="not RGB of 8 x 9"):
        Preprocess(size=8).normalise(Image.new("RGB", (8, 9)))
