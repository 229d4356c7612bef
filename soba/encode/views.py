"""Augmented views of an image, as the TPT family makes them (TPT, arXiv 2209.07511).

View 0 is the plain preprocessing; every other one is a random resized crop, flipped half of the
time, and with `augmix` a mixture of three chains of mild distortions (AugMix, arXiv 1912.02781).
TPT mixes for the ten fine-grained sets only, TDA for ImageNet-A, -V2, -R and -Sketch, MTA never.
The official codes draw from global generators, so that views depend on what was loaded before and
by which worker. Here they depend on the seed and the image's key alone: any order, any process.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageOps

from soba.encode.preprocess import Preprocess, to_rgb

AREA = (0.08, 1.0)  # of the image
RATIO = (3 / 4, 4 / 3)  # width to height
FLIP = 0.5
CHAINS, LONGEST_CHAIN, SEVERITY = 3, 3, 1.0
OPERATIONS = (
    "autocontrast",
    "equalize",
    "posterize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)

_BILINEAR = Image.Resampling.BILINEAR
_ATTEMPTS = 10


class ViewMaker(Protocol):
    """Whatever makes several pictures of one image."""

    @property
    def count(self) -> int: ...

    def __call__(self, image: Image.Image, key: int | str) -> np.ndarray: ...

    def policy(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Views:
    """Makes the views of one image after another.

    Parameters
    ----------
    count
        Views per image, the plain one included. Fewer views are the first of more.
    augmix
        Whether the crops are distorted and mixed.
    preprocess
        Of the encoder. Crops are always cut from the image in RGB.
    seed
        Another seed, other views.

    Examples
    --------
    >>> views = Views(count=4, preprocess=Preprocess(size=32))
    >>> image = Image.linear_gradient("L")
    >>> views(image, "dog.jpg").shape
    (4, 3, 32, 32)
    >>> bool((views(image, "dog.jpg")[0] == views.preprocess(image)).all())
    True
    """

    count: int = 64
    augmix: bool = False
    preprocess: Preprocess = field(default_factory=Preprocess)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, not {self.count}")

    def __call__(self, image: Image.Image, key: int | str) -> np.ndarray:
        """(count, 3, size, size) float32; `key` is what identifies the image in its set."""
        size = self.preprocess.size
        rng = _generator(self.seed, key)
        out = np.empty((self.count, 3, size, size), np.float32)
        out[0] = self.preprocess(image)
        rgb = to_rgb(image)
        for index in range(1, self.count):
            crop = resized_crop(rgb, draw_box(rng, *rgb.size), size)
            if rng.random() < FLIP:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            out[index] = self._mixed(crop, rng) if self.augmix else self.preprocess.normalise(crop)
        return out

    def policy(self) -> dict[str, Any]:
        """Plain values that say how the views were made, for fingerprints and records.

        Examples
        --------
        >>> Views(count=16).policy()["count"]
        16
        """
        augmix = {
            "operations": list(OPERATIONS),
            "chains": CHAINS,
            "longest_chain": LONGEST_CHAIN,
            "severity": SEVERITY,
        }
        return {
            "count": self.count,
            "area": list(AREA),
            "ratio": list(RATIO),
            "interpolation": "bilinear",
            "flip": FLIP,
            "augmix": augmix if self.augmix else None,
            "seed": self.seed,
            "preprocess": self.preprocess.as_dict(),
        }

    def _mixed(self, crop: Image.Image, rng: np.random.Generator) -> np.ndarray:
        normalise = self.preprocess.normalise
        weights = rng.dirichlet([1.0] * CHAINS).astype(np.float32)
        share = np.float32(rng.beta(1.0, 1.0))
        out = share * normalise(crop)
        for weight in weights:
            distorted = crop
            for _ in range(rng.integers(1, LONGEST_CHAIN + 1)):
                distorted = distort(distorted, *draw_operation(rng, self.preprocess.size))
            out += (1 - share) * weight * normalise(distorted)
        return out


def draw_box(rng: np.random.Generator, width: int, height: int) -> tuple[int, int, int, int]:
    """Where torchvision's RandomResizedCrop would cut: left, top, right, bottom.

    Area and log ratio are uniform; after ten boxes that do not fit, the largest central one that
    keeps to the ratio.
    """
    for _ in range(_ATTEMPTS):
        area = width * height * rng.uniform(*AREA)
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            top = int(rng.integers(height - high + 1))
            left = int(rng.integers(width - wide + 1))
            return left, top, left + wide, top + high
    wide, high = width, height
    if width / height < RATIO[0]:
        high = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        wide = round(height * RATIO[1])
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def resized_crop(image: Image.Image, box: tuple[int, int, int, int], size: int) -> Image.Image:
    """The box of the image as a square.

    Not `resize(box=...)`: that lets pixels outside the box bleed into its edge.
    """
    return image.crop(box).resize((size, size), _BILINEAR)


def draw_operation(rng: np.random.Generator, size: int) -> tuple[str, float]:
    """A distortion and its strength, for squares of this size.

    Truncated as in TPT's code, so that at severity 1 posterising always leaves 4 bits, turns are
    of 0, 1 or 2 degrees and shifts of a thirtieth of the square at most.
    """
    name = OPERATIONS[rng.integers(len(OPERATIONS))]
    level = rng.uniform(0.1, SEVERITY) / 10
    sign = 1 if rng.random() < 0.5 else -1
    match name:
        case "posterize":
            return name, 4 - int(4 * level)  # bits kept
        case "solarize":
            return name, 256 - int(256 * level)  # inverted from here on
        case "rotate":
            return name, sign * int(30 * level)  # degrees
        case "shear_x" | "shear_y":
            return name, sign * 0.3 * level
        case "translate_x" | "translate_y":
            return name, sign * int(size / 3 * level)  # pixels
    return name, 0.0


def distort(image: Image.Image, name: str, strength: float) -> Image.Image:
    """The image after one operation; what moves in from outside is black."""
    match name:
        case "autocontrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "posterize":
            return ImageOps.posterize(image, int(strength))
        case "solarize":
            return ImageOps.solarize(image, int(strength))
        case "rotate":
            return image.rotate(strength, _BILINEAR)
        case "shear_x":
            matrix = (1.0, strength, 0.0, 0.0, 1.0, 0.0)
        case "shear_y":
            matrix = (1.0, 0.0, 0.0, strength, 1.0, 0.0)
        case "translate_x":
            matrix = (1.0, 0.0, strength, 0.0, 1.0, 0.0)
        case "translate_y":
            matrix = (1.0, 0.0, 0.0, 0.0, 1.0, strength)
        case _:
            raise ValueError(f"unknown operation {name!r}; known: {', '.join(OPERATIONS)}")
    return image.transform(image.size, Image.Transform.AFFINE, matrix, _BILINEAR)


def _generator(seed: int, key: int | str) -> np.random.Generator:
    # Hashed, so that neighbouring keys and seeds share nothing; 1 and "1" are different keys.
    if not isinstance(key, str | int | np.integer):
        raise TypeError(f"key must be a number or a string, not {key!r}")
    kind = "text" if isinstance(key, str) else "number"
    # File names that are no valid text arrive with surrogates in them.
    seed_text = f"{seed} {kind} {key}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(seed_text, digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
