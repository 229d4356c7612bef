"""Batches of rendered icons with captions: a pure function of (seed, step), so runs resume."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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
CAPTIONS_PER_BATCH = 256  # where there are no pictures
AHEAD = 6  # batches drawn before they are needed
CORE_SHARE = 0.6  # of a batch's names that are classes of the data set; the rest widen the tower
SIZE = 96
SMALL = 64  # pixels, where many pictures count for more than sharp ones
LOOKS = ("plain", "plain", "colourful", "pencil")
TEMPLATES = (*templates("icon"), *templates("single"), *templates("seven"), *templates("eighty"))


Row = tuple[str, tuple[str, ...]]  # a name and its drawings


@dataclass(frozen=True)
class Vocabulary:
    """Names with their drawings in the source families."""

    core: tuple[Row, ...]  # the classes of the data set
    extra: tuple[Row, ...]  # other names, so that the text tower reads

    @classmethod
    def of_source(cls) -> Vocabulary:
        classes = set(icons.class_names())
        drawings_of: dict[str, list[str]] = {}
        for style in SOURCE:
            for name in icons.names_in(style):
                # One word; Material's thousands of compounds would crowd out the classes.
                if name in classes or re.fullmatch("[a-z]{3,}", name):
                    drawings_of.setdefault(name, []).append(f"{style}/{name}")
        rows = [(name, tuple(drawings)) for name, drawings in sorted(drawings_of.items())]
        return cls(
            tuple(row for row in rows if row[0] in classes),
            tuple(row for row in rows if row[0] not in classes),
        )


@dataclass(frozen=True)
class Batch:
    """Names by number, a caption of each, and as many pictures of each, name after name."""

    numbers: np.ndarray
    captions: list[str]
    pixels: np.ndarray | None  # (names * images, 3, size, size) uint8


def batch(vocabulary: Vocabulary, seed: int, step: int, size: int = SIZE) -> Batch:
    """The batch of a step, with pictures of `size` pixels.

    With size 0 it has no pictures and more names, evenly from the whole vocabulary.
    """
    rng = np.random.default_rng([seed, step])
    rows = (*vocabulary.core, *vocabulary.extra)
    if not size:
        numbers = rng.choice(len(rows), CAPTIONS_PER_BATCH, replace=False)
        return Batch(numbers, _captions(rows, numbers, rng), None)
    core = round(CORE_SHARE * NAMES_PER_BATCH)
    classes = rng.choice(len(vocabulary.core), core, replace=False)
    others = rng.choice(len(vocabulary.extra), NAMES_PER_BATCH - core, replace=False)
    numbers = np.concatenate([classes, len(vocabulary.core) + others])
    drawn = []
    for number in numbers:
        drawings = rows[number][1]
        for _ in range(IMAGES_PER_NAME):
            shape = _stroke(icons.mask(drawings[rng.integers(len(drawings))]), rng)
            image = icons.render(shape, rng, LOOKS[rng.integers(len(LOOKS))], size)
            drawn.append(np.asarray(image))
    captions = _captions(rows, numbers, rng)
    return Batch(numbers, captions, np.stack(drawn).transpose(0, 3, 1, 2))


def _captions(rows: tuple[Row, ...], numbers: np.ndarray, rng: np.random.Generator) -> list[str]:
    sentences = [TEMPLATES[i] for i in rng.integers(len(TEMPLATES), size=len(numbers))]
    names = [icons.readable(rows[number][0]) for number in numbers]
    return [fill(template, name) for template, name in zip(sentences, names, strict=True)]


def batches(vocabulary: Vocabulary, seed: int, steps: Iterable[tuple[int, int]]) -> Iterator[Batch]:
    """Batches of (step, pixels), drawn in a process of their own while the model trains."""
    with ProcessPoolExecutor(1) as pool:
        coming = iter(steps)
        waiting: list[Future[Batch]] = []
        while True:
            for step, size in islice(coming, AHEAD - len(waiting)):
                waiting.append(pool.submit(batch, vocabulary, seed, step, size))
            if not waiting:
                return
            yield waiting.pop(0).result()


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
