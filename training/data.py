"""Batches of rendered icons with captions: a pure function of (seed, step), so runs resume."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
from PIL import Image, ImageChops, ImageFilter

from soba.datasets import icons
from soba.encode.preprocess import Preprocess
from soba.encode.prompts import fill, templates

SOURCE = icons.DOMAINS["source"].drawings
NAMES_PER_BATCH = 96
IMAGES_PER_NAME = 2
CORE_SHARE = 0.6  # of a batch's names that are classes of the data set; the rest widen the tower
SIZE = 96
LOOKS = ("plain", "plain", "colourful", "pencil")
CAPTIONS = (*templates("icon"), *templates("single"), *templates("seven"), *templates("eighty"))


@dataclass(frozen=True)
class Vocabulary:
    """Names with their drawings in the source families."""

    core: tuple[tuple[str, tuple[str, ...]], ...]  # the classes of the data set
    extra: tuple[tuple[str, tuple[str, ...]], ...]  # other names, so that the text tower reads

    @classmethod
    def of_source(cls) -> Vocabulary:
        classes = set(icons.class_names())
        found: dict[str, list[str]] = {}
        for style in SOURCE:
            for name in icons.names_in(style):
                # One word; Material's thousands of compounds would crowd out the classes.
                if name in classes or re.fullmatch("[a-z]{3,}", name):
                    found.setdefault(name, []).append(f"{style}/{name}")
        rows = [(name, tuple(drawings)) for name, drawings in sorted(found.items())]
        return cls(
            tuple(row for row in rows if row[0] in classes),
            tuple(row for row in rows if row[0] not in classes),
        )


Batch = tuple[np.ndarray, list[str], np.ndarray]


def batch(vocabulary: Vocabulary, seed: int, step: int) -> Batch:
    """(names * images, 3, size, size) uint8 pixels, and of each name a caption and its number."""
    rng = np.random.default_rng([seed, step])
    core = round(CORE_SHARE * NAMES_PER_BATCH)
    classes, others = len(vocabulary.core), len(vocabulary.extra)
    chosen = rng.choice(classes, core, replace=False)
    rest = rng.choice(others, NAMES_PER_BATCH - core, replace=False)
    numbers = np.concatenate([chosen, classes + rest])
    rows = [(*vocabulary.core, *vocabulary.extra)[number] for number in numbers]
    pixels = []
    for _, drawings in rows:
        for _ in range(IMAGES_PER_NAME):
            shape = _stroke(icons.mask(drawings[rng.integers(len(drawings))]), rng)
            image = icons.render(shape, rng, LOOKS[rng.integers(len(LOOKS))], SIZE)
            pixels.append(np.asarray(image))
    captions = [
        fill(CAPTIONS[rng.integers(len(CAPTIONS))], icons.readable(name)) for name, _ in rows
    ]
    return np.stack(pixels).transpose(0, 3, 1, 2), captions, numbers


def batches(
    vocabulary: Vocabulary, seed: int, first: int, last: int, ahead: int = 6
) -> Iterator[Batch]:
    """Steps first..last-1, drawn in a process of their own while the model trains."""
    with ProcessPoolExecutor(1) as pool:
        steps = iter(range(first, last))
        waiting: list[Future[Batch]] = [
            pool.submit(batch, vocabulary, seed, step) for step in islice(steps, ahead)
        ]
        while waiting:
            done = waiting.pop(0)
            for step in islice(steps, 1):
                waiting.append(pool.submit(batch, vocabulary, seed, step))
            yield done.result()


def normalised(pixels: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """uint8 (n, 3, h, w) -> what the model sees, as `Preprocess.normalise` has it."""
    mean, std = (
        np.asarray(v, np.float32)[:, None, None] for v in (preprocess.mean, preprocess.std)
    )
    return (pixels.astype(np.float32) / np.float32(255) - mean) / std


def _stroke(shape: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Another pen: a third of the drawings thicker, thinner, or only their outline."""
    kind = rng.integers(9)
    if kind == 0:
        return shape.filter(ImageFilter.MaxFilter(5))
    if kind == 1:
        return shape.filter(ImageFilter.MinFilter(3))
    if kind == 2:
        width = int(rng.choice([3, 5, 7]))
        return ImageChops.subtract(shape, shape.filter(ImageFilter.MinFilter(width)))
    return shape
