"""PIL image -> normalised pixels, as CLIP was trained: short side, centre crop, mean and std.

The pixels equal torchvision's Resize, CenterCrop, ToTensor, Normalize bit for bit, without torch.
OpenAI converts to RGB after the crop, the loaders of TPT and TDA before the resize. We convert
first: Pillow resizes palette and 1-bit images by nearest neighbour, whatever filter is asked for,
and those are what icons and diagrams are stored as. `convert="last"` is OpenAI's order; the two
differ for such images, other colour spaces and transparency, never for RGB and grey.
EXIF orientation is ignored, as torchvision does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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
    convert
        To RGB "first", before the resize, or "last", after the crop.

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
    convert: str = "first"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError("mean and std must have three values, those of std above zero")
        if self.interpolation not in RESAMPLING:
            known = ", ".join(RESAMPLING)
            raise ValueError(f"interpolation must be one of {known}, not {self.interpolation!r}")
        if self.convert not in ("first", "last"):
            raise ValueError(f'convert must be "first" or "last", not {self.convert!r}')

    def __call__(self, image: Image.Image) -> np.ndarray:
        """Any image -> (3, size, size) float32."""
        return self.normalise(self.square(image))

    def square(self, image: Image.Image) -> Image.Image:
        """The part the model will see: short side resized, centre crop, RGB."""
        if self.convert == "first":
            image = image.convert("RGB")
        width, height = image.size
        short, long = min(image.size), max(image.size)
        if short == 0 or long > _LONGEST_TO_SHORTEST * short:
            raise ValueError(
                f"an image of {width} x {height} pixels cannot be cropped to a square: "
                f"its sides may differ {_LONGEST_TO_SHORTEST} times at most"
            )
        # Rounded down, and the product before the quotient, as torchvision does.
        width, height = (self.size * side // short for side in image.size)
        image = image.resize((width, height), RESAMPLING[self.interpolation])
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return image.crop((left, top, left + self.size, top + self.size)).convert("RGB")

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

        >>> Preprocess(size=64).as_dict()["size"]
        64
        """
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
