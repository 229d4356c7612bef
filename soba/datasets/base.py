"""The one shape of an image data set here: keys in a fixed order, and how to open each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from soba.encode.image_files import open_image


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images in a fixed order, with what is known of them.

    Parameters
    ----------
    name
        For records and file names.
    class_names
        In the order of the labels, as a prompt would say them.
    keys
        What identifies each image, unique within the set: a path below `root`.
    labels
        (n,) class indices, where known.
    templates
        The prompts this set is usually scored with, `{}` for the class name.
    root
        The folder that keys are relative to.
    """

    name: str
    class_names: tuple[str, ...]
    keys: tuple[str, ...]
    labels: np.ndarray | None = None
    templates: tuple[str, ...] = ("a photo of a {}.",)
    root: Path | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def path(self, index: int) -> Path:
        """Where an image is on disk."""
        return (self.root or Path()) / self.keys[index]

    def image(self, index: int) -> Image.Image:
        """The image, as it is on disk; a subclass may draw it instead."""
        return open_image(self.path(index))
