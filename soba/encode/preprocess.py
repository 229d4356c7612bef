"""PIL image -> normalised pixels, as the model was trained: resize, centre crop, mean and std.

The pixels equal torchvision's Resize, CenterCrop, ToTensor, Normalize bit for bit, without torch.
OpenAI converts to RGB after the crop, the loaders of TPT and TDA before the resize. We convert
first: Pillow resizes palette and 1-bit images by nearest neighbour, whatever filter is asked for,
and those are what icons and diagrams are stored as. The two orders differ for such images, other
colour spaces and transparency, never for RGB and grey.
EXIF orientation is ignored, as torchvision does. Greyscale of more than eight bits, which Pillow
would clip to white or black, is scaled to eight first: see `eight_bits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from PIL import Image

OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

RESIZES = ("shortest", "squash")
CROPS = ("rounded", "floored")

# Greyscale modes that hold more than eight bits; "I" and "F" do not say how many.
_SIXTEEN_BITS = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})
_DEEP = _SIXTEEN_BITS | {"I", "F"}
# Pillow's readers of these formats make mode "I" of 16 bits only.
_SIXTEEN_BIT_FORMATS = frozenset({"PNG", "PPM"})

# The whole resized image exists before the crop: a 1 x 10,000 one would take gigabytes.
_LONGEST_TO_SHORTEST = 100


@dataclass(frozen=True)
class Preprocess:
    """How a model wants its images.

    Parameters
    ----------
    size
        Side of the square the image tower sees.
    mean, std
        Per channel, of pixels in [0, 1].
    interpolation
        Of the resize, antialiased: "nearest", "bilinear", "bicubic" or "lanczos".
    resize
        "shortest": the short side to `size`, then the centre is cut out, as CLIP does. "squash":
        both sides to `size`, nothing is cut off, as SigLIP and PE do.
    resized
        What is resized to in place of `size`, for models that cut more off.
    crop
        Where the centre lies if half a pixel is left over: "rounded" as torchvision has it, or
        "floored" as transformers has it.

    Examples
    --------
    >>> preprocess = Preprocess(size=32)
    >>> preprocess(Image.new("L", (50, 40), 255)).shape
    (3, 32, 32)
    """

    size: int = 224
    mean: tuple[float, float, float] = OPENAI_MEAN
    std: tuple[float, float, float] = OPENAI_STD
    interpolation: str = "bicubic"
    resize: str = "shortest"
    resized: int | None = None
    crop: str = "rounded"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError("mean and std must have three values, those of std above zero")
        if self.interpolation not in RESAMPLING:
            known = ", ".join(RESAMPLING)
            raise ValueError(f"interpolation must be one of {known}, not {self.interpolation!r}")
        if self.resize not in RESIZES:
            known = " or ".join(RESIZES)
            raise ValueError(f"the resize mode must be {known}, not {self.resize!r}")
        if self.resized is not None and self.resized < self.size:
            raise ValueError(
                f"resized to {self.resized}, an image has no {self.size} pixels to cut out"
            )
        if self.crop not in CROPS:
            raise ValueError(f"crop must be {' or '.join(CROPS)}, not {self.crop!r}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any], size: int | None = None) -> Self:
        """What open_clip calls a preprocess_cfg; `size` is for those that do not say theirs.

        Examples
        --------
        >>> Preprocess.from_config({"size": [256, 256], "resize_mode": "squash"}).resize
        'squash'
        """
        sides = config.get("size") or size or cls.size
        width, height = (sides, sides) if isinstance(sides, int) else sides
        if width != height:
            raise ValueError(f"images must be square, not {width} x {height}")
        return cls(
            int(width),
            _three(config.get("mean") or OPENAI_MEAN),
            _three(config.get("std") or OPENAI_STD),
            config.get("interpolation") or cls.interpolation,
            config.get("resize_mode") or cls.resize,
        )

    def __call__(self, image: Image.Image) -> np.ndarray:
        """Any image -> (3, size, size) float32."""
        return self.normalise(self.square(image))

    def square(self, image: Image.Image) -> Image.Image:
        """The part the model will see, in RGB: all of it where it is squashed, else the centre."""
        image, resampling = to_rgb(image), RESAMPLING[self.interpolation]
        width, height = image.size
        short, long = min(image.size), max(image.size)
        side = self.size if self.resized is None else self.resized
        if self.resize == "squash" and short > 0:
            return self._centre(image.resize((side, side), resampling))
        if short == 0 or long > _LONGEST_TO_SHORTEST * short:
            raise ValueError(
                f"an image of {width} x {height} pixels cannot be cropped to a square: "
                f"its sides may differ {_LONGEST_TO_SHORTEST} times at most"
            )
        # Rounded down, and the product before the quotient, as torchvision does.
        width, height = (side * length // short for length in image.size)
        return self._centre(image.resize((width, height), resampling))

    def _centre(self, image: Image.Image) -> Image.Image:
        rest = [length - self.size for length in image.size]
        if not any(rest):
            return image
        left, top = (each // 2 if self.crop == "floored" else round(each / 2) for each in rest)
        return image.crop((left, top, left + self.size, top + self.size))

    def normalise(self, square: Image.Image) -> np.ndarray:
        """An RGB image of the right size -> (3, size, size) float32."""
        if square.mode != "RGB" or square.size != (self.size, self.size):
            raise ValueError(
                f"expected an RGB image of {self.size} x {self.size} pixels, "
                f"not {square.mode} of {square.width} x {square.height}"
            )
        mean, std = (
            np.asarray(values, np.float32)[:, None, None] for values in (self.mean, self.std)
        )
        pixels = np.asarray(square).transpose(2, 0, 1).astype(np.float32, order="C")
        # In float32 and in this order: the roundings are torchvision's.
        pixels /= np.float32(255)
        pixels -= mean
        pixels /= std
        return pixels

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for fingerprints and records.

        Examples
        --------
        >>> Preprocess(size=64).as_dict()["size"]
        64
        """
        values = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
        for name, usual in (("resize", "shortest"), ("resized", None), ("crop", "rounded")):
            if values[name] == usual:
                del values[name]
        # Fingerprints were made of these values when there was a choice of when to convert and
        # squashing was the only resize with a name: files from then are to be known again.
        return values | {"convert": "first"}


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def to_rgb(image: Image.Image) -> Image.Image:
    """Any image in RGB, greyscale of more than eight bits scaled and not clipped.

    Examples
    --------
    >>> to_rgb(Image.new("I;16", (1, 1), 65535)).getpixel((0, 0))
    (255, 255, 255)
    """
    return eight_bits(image).convert("RGB")


def eight_bits(image: Image.Image) -> Image.Image:
    """Greyscale of 16 bits, whole numbers or floats -> "L"; any other image as it is.

    Sixteen bits are divided by 257, so that 65,535 is white. Mode "I" (whole numbers) and "F"
    (floats) do not say what white is, so the values decide: the smallest of 1 (floats only), 255
    and 65,535 that is no less than the largest value, or that value itself beyond them. Floats may
    pass a bound by a half, since resampling overshoots; their largest value is white then. Where
    values are below zero there is no agreed black, and smallest to largest is black to white.
    NaN is black.
    """
    if image.mode not in _DEEP:
        return image
    values = np.asarray(image).astype(np.float64)
    low, high = _black_and_white(values, image)
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    shares = ((values - low) / (high - low)).clip(0, 1)
    return Image.fromarray(np.rint(255 * shares).astype(np.uint8))


def _black_and_white(values: np.ndarray, image: Image.Image) -> tuple[float, float]:
    """The values that are to become 0 and 255."""
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in _SIXTEEN_BIT_FORMATS):
        return 0.0, 65535.0
    finite = values[np.isfinite(values)]
    if not finite.size:
        raise ValueError("none of its values is a finite number")
    low, high = float(finite.min()), float(finite.max())
    if low < 0:
        return low, high if high > low else 0.0
    bounds, slack = ((1.0, 255.0, 65535.0), 1.5) if image.mode == "F" else ((255.0, 65535.0), 1.0)
    bound = next((bound for bound in bounds if high <= slack * bound), high)
    return 0.0, max(bound, high)
