"""Views that a diffusion model has drawn, read from a folder: what DiffTPT adds to the crops.

The images of `cat/1.jpg` lie in `FOLDER/cat/1/`, in the order of their names. They are generated
elsewhere and once; here they are only preprocessed and put behind the other views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from soba.encode.preprocess import Preprocess
from soba.encode.views import Views

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class GeneratedViews:
    """The views of an image, and behind them `generated` images of its folder.

    Parameters
    ----------
    views
        Makes the views that come first.
    folder
        Holds a folder of generated images for each image.
    generated
        How many of them are used, the first by name: 63 in DiffTPT.
    """

    views: Views
    folder: Path
    generated: int = 63

    @property
    def count(self) -> int:
        """Views per image, in all."""
        return self.views.count + self.generated

    @property
    def preprocess(self) -> Preprocess:
        return self.views.preprocess

    def __call__(self, image: Image.Image, key: int | str) -> np.ndarray:
        """(count, 3, size, size) float32."""
        rows = [self.views(image, key)]
        for file in self._files(str(key)):
            with Image.open(file) as drawn:
                rows.append(self.preprocess(drawn)[None])
        return np.concatenate(rows)

    def check(self, keys: Sequence[str]) -> None:
        """Raise, before any encoding, if an image lacks generated ones."""
        short = [key for key in keys if len(self._files(key)) < self.generated]
        if short:
            first = self._folder_of(short[0])
            raise ValueError(
                f"{self.folder}: {len(short)} of {len(keys)} images have fewer than "
                f"{self.generated} generated ones, the first in {first}"
            )

    def policy(self) -> dict[str, Any]:
        """How the views were made, for fingerprints and records."""
        return self.views.policy() | {"generated": self.generated}

    def _folder_of(self, key: str) -> Path:
        return self.folder / PurePosixPath(key).with_suffix("")

    def _files(self, key: str) -> list[Path]:
        folder = self._folder_of(key)
        if not folder.is_dir():
            return []
        files = sorted(f for f in folder.iterdir() if f.suffix.lower() in _ENDINGS)
        return files[: self.generated]
