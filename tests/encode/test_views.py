"""Crops and boxes against torchvision, AugMix against its ranges, and what views depend on."""

import json
import multiprocessing
from collections import Counter

import numpy as np
import pytest
import torch
import torchvision_shim
from PIL import Image

from soba.encode.preprocess import Preprocess
from soba.encode.views import (
    OPERATIONS,
    Views,
    _generator,
    distort,
    draw_box,
    draw_operation,
    resized_crop,
)

torchvision_shim.install()
from torchvision import transforms  # noqa: E402
from torchvision.transforms import functional  # noqa: E402

SMALL = Preprocess(size=32)


def picture(width=70, height=50, seed=0):
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def test_view_zero_is_the_plain_one_and_the_rest_are_crops():
    image = picture()
    views = Views(count=9, preprocess=SMALL)(image, "a")
    assert views.shape == (9, 3, 32, 32) and views.dtype == np.float32
    np.testing.assert_array_equal(views[0], SMALL(image))
    assert len({view.tobytes() for view in views}) == 9


def test_resized_crop_equals_torchvision_bit_for_bit():
    rng = np.random.default_rng(1)
    for seed in range(50):
        width, height = (int(side) for side in rng.integers(1, 90, 2))
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        left, top, right, bottom = box = draw_box(rng, width, height)
        size = (7, 32, 65)[seed % 3]
        expected = functional.resized_crop(
            image, top, left, bottom - top, right - left, [size, size]
        )
        assert resized_crop(image, box, size).tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", [(500, 375), (64, 64), (100, 420), (3, 90), (90, 3), (1, 1)])
def test_boxes_are_distributed_as_torchvisions(size):
    width, height = size
    rng, image = np.random.default_rng(2), Image.new("L", size)
    ours = np.array([draw_box(rng, width, height) for _ in range(2000)])
    ours = np.column_stack(
        [ours[:, 0], ours[:, 1], ours[:, 2] - ours[:, 0], ours[:, 3] - ours[:, 1]]
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = np.array(
            [
                transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
                for _ in range(2000)
            ]
        )[:, [1, 0, 3, 2]]
    assert (ours[:, 2:] >= 1).all() and (ours[:, :2] >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= size).all()
    area = ours[:, 2] * ours[:, 3] / (width * height)
    if min(size) > 50:
        assert area.min() > 0.075 and area.max() <= 1
        ratio = ours[:, 2] / ours[:, 3]
        assert ratio.min() > 0.73 and ratio.max() < 1.37
    for mine, their in zip(ours.T, theirs.T, strict=True):  # left, top, width, height
        # Kolmogorov-Smirnov: 0.0608 is exceeded once in 800 by samples of one distribution.
        points = np.union1d(mine, their)
        gap = np.searchsorted(np.sort(mine), points, "right") - np.searchsorted(
            np.sort(their), points, "right"
        )
        assert np.abs(gap).max() / 2000 < 0.0608


def test_views_that_never_fit_fall_back_to_the_centre():
    rng = np.random.default_rng(0)
    assert draw_box(rng, 3, 900) == (0, 448, 3, 452)
    assert draw_box(rng, 900, 3) == (448, 0, 452, 3)


def test_a_crop_is_flipped_half_of_the_time():
    # Dark left, bright right: any crop tells which way round it is.
    image = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (256, 1)))
    views = Views(count=401, preprocess=SMALL)(image, 0)[1:]
    flipped = int((views[:, 0, 16, 0] > views[:, 0, 16, -1]).sum())
    assert 160 < flipped < 240


@pytest.mark.parametrize("augmix", [False, True])
def test_views_depend_on_seed_and_key_only(augmix):
    images = {
        key: picture(seed=index) for index, key in enumerate(["a", "b", 1, "1", "\udcff.png"])
    }
    views = Views(count=5, augmix=augmix, preprocess=SMALL)
    forth = {key: views(image, key) for key, image in images.items()}
    np.random.seed(5)
    back = {key: views(images[key], key) for key in reversed(images)}
    for key in images:
        np.testing.assert_array_equal(forth[key], back[key])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(views, (images["b"], "b")), forth["b"])


@pytest.mark.parametrize("augmix", [False, True])
def test_other_keys_and_seeds_give_other_views_and_fewer_are_the_first(augmix):
    image, views = picture(), Views(count=4, augmix=augmix, preprocess=SMALL)
    other = Views(count=4, augmix=augmix, preprocess=SMALL, seed=1)
    stacks = [views(image, 1), views(image, "1"), views(image, 11), other(image, 1)]
    assert len({one[1:].tobytes() for one in stacks}) == 4
    assert len({one[0].tobytes() for one in stacks}) == 1
    longer = Views(count=9, augmix=augmix, preprocess=SMALL)(image, 1)
    np.testing.assert_array_equal(longer[:4], stacks[0])
    np.testing.assert_array_equal(views(image, np.int64(1)), stacks[0])


def test_strengths_are_those_of_severity_one():
    rng = np.random.default_rng(0)
    drawn = [draw_operation(rng, 224) for _ in range(9000)]
    counts = Counter(name for name, _ in drawn)
    assert set(counts) == set(OPERATIONS) and len(OPERATIONS) == 9
    assert min(counts.values()) > 850 and max(counts.values()) < 1150
    strengths = {name: {s for one, s in drawn if one == name} for name in OPERATIONS}
    assert strengths["autocontrast"] == strengths["equalize"] == {0.0}
    assert strengths["posterize"] == {4}
    assert strengths["rotate"] == {-2, -1, 0, 1, 2}
    assert strengths["solarize"] == set(range(231, 255))
    assert strengths["translate_x"] == strengths["translate_y"] == set(range(-7, 8))
    for name in ("shear_x", "shear_y"):
        sizes = np.abs(list(strengths[name]))
        assert 0.003 <= sizes.min() < 0.004 and 0.029 < sizes.max() < 0.03
        assert 0.42 < np.mean(np.array(list(strengths[name])) < 0) < 0.58  # five deviations


def test_operations_move_as_they_say():
    image = picture(64, 64)
    pixels = np.asarray(image).astype(int)
    np.testing.assert_array_equal(
        np.asarray(distort(image, "translate_x", 5))[:, :-5], pixels[:, 5:]
    )
    np.testing.assert_array_equal(np.asarray(distort(image, "translate_y", -5))[5:], pixels[:-5])
    assert not np.asarray(distort(image, "translate_y", -5))[:5].any()
    np.testing.assert_array_equal(np.asarray(distort(image, "posterize", 4)), pixels & 0xF0)
    np.testing.assert_array_equal(
        np.asarray(distort(image, "solarize", 200)), np.where(pixels < 200, pixels, 255 - pixels)
    )
    np.testing.assert_array_equal(
        np.asarray(distort(image, "rotate", 2)),
        np.asarray(functional.rotate(image, 2, functional.InterpolationMode.BILINEAR)),
    )
    for name, turned in (("shear_x", "shear_y"), ("shear_y", "shear_x")):
        sheared = distort(image, name, 0.25)
        across = distort(image.transpose(Image.Transpose.TRANSPOSE), turned, 0.25)
        assert sheared.tobytes() == across.transpose(Image.Transpose.TRANSPOSE).tobytes()
    # A shear in x moves the row whose middle is at height y by y / 4.
    row = np.asarray(distort(image, "shear_x", 0.25)).astype(int)[20, :40]
    moved = [np.interp(np.arange(40) + 20.5 / 4, np.arange(64), pixels[20, :, c]) for c in range(3)]
    assert np.abs(row - np.stack(moved, -1)).max() <= 1
    for name in OPERATIONS:
        assert distort(image, name, 4).size == (64, 64)
    with pytest.raises(ValueError, match="unknown operation 'blur'; known: autocontrast"):
        distort(image, "blur", 1)


def test_augmix_is_a_mixture_of_the_crop_and_three_chains():
    image = picture()
    views = Views(count=2, augmix=True, preprocess=SMALL)
    mixed = views(image, "k")[1].astype(float)

    rng = _generator(0, "k")
    crop = resized_crop(image, draw_box(rng, *image.size), 32)
    if rng.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    weights, share = rng.dirichlet([1, 1, 1]), rng.beta(1, 1)
    chains = []
    for _ in range(3):
        chain = crop
        for _ in range(rng.integers(1, 4)):
            chain = distort(chain, *draw_operation(rng, 32))
        chains.append(SMALL.normalise(chain).astype(float))
    expected = share * SMALL.normalise(crop) + (1 - share) * np.tensordot(weights, chains, 1)
    np.testing.assert_allclose(mixed, expected, atol=1e-5)


def test_mixtures_stay_between_black_and_white():
    views = Views(count=32, augmix=True, preprocess=SMALL)(picture(), 0)
    black, white = (SMALL(Image.new("L", (9, 9), grey)) for grey in (0, 255))
    assert (views >= black - 1e-5).all() and (views <= white + 1e-5).all()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_any_mode_is_cut_in_rgb(mode):
    image = picture().convert(mode)
    views = Views(count=4, augmix=True, preprocess=SMALL)
    np.testing.assert_array_equal(views(image, 0), views(image.convert("RGB"), 0))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_crops_of_deep_greyscale_are_scaled(dtype):
    grey = picture().convert("L")
    grey.putpixel((0, 0), 255)
    deep = Image.fromarray((np.asarray(grey) * 257.0).astype(dtype))
    views = Views(count=4, preprocess=SMALL)
    np.testing.assert_allclose(views(deep, "a"), views(grey, "a"), atol=0.03)  # two of 256 shades


def test_policy_says_all_that_matters():
    policies = [
        Views(),
        Views(count=32),
        Views(augmix=True),
        Views(seed=1),
        Views(preprocess=Preprocess(size=32)),
    ]
    texts = {json.dumps(views.policy()) for views in policies}
    assert len(texts) == len(policies)


def test_no_views_and_no_key():
    with pytest.raises(ValueError, match="count must be at least 1, not 0"):
        Views(count=0)
    with pytest.raises(TypeError, match="key must be a number or a string, not None"):
        Views(count=2, preprocess=SMALL)(picture(), None)
