"""A benchmark small enough for a test: patches of eight colours, and an encoder that sees them."""

import hashlib
from dataclasses import dataclass

import numpy as np
from PIL import Image

from soba.bench.sources import Census
from soba.datasets import ImageSet
from soba.encode.encoder import Encoder
from soba.encode.preprocess import Preprocess

NAMES = ("black", "blue", "green", "cyan", "red", "purple", "yellow", "white")
RGB = np.array([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)]) * 0.6 + 0.2
SIDE = 4


@dataclass(frozen=True, eq=False)
class Patches(ImageSet):
    noise: float = 0.0
    seed: int = 0

    def image(self, index):
        rng = np.random.default_rng([self.seed, index])
        colour = RGB[NAMES.index(self.class_names[self.labels[index]])]
        colour = colour + self.noise * rng.normal(size=3)
        pixels = colour + 0.05 * rng.normal(size=(SIDE, SIDE, 3))
        return Image.fromarray((255 * pixels.clip(0, 1)).astype(np.uint8))


class ColourEncoder(Encoder):
    """Random features of the pixels; a word is the feature of its colour, said unclearly."""

    def __init__(self):
        self.name, self.width, self.logit_scale = "colours", 24, 30.0
        self.preprocess = Preprocess(size=SIDE)
        self.fingerprint = "colours-1"
        self.images_encoded = 0
        self._weights = np.random.default_rng(0).normal(size=(self.width, 3 * SIDE * SIDE))

    def encode_pixels(self, pixels):
        self.images_encoded += len(pixels)
        return self._unit(np.tanh(pixels.reshape(len(pixels), -1) @ self._weights.T / 8))

    def encode_texts(self, texts):
        rows = []
        for text in texts:
            label = next(i for i, name in enumerate(NAMES) if name in text)
            patch = np.broadcast_to(RGB[label], (SIDE, SIDE, 3))
            picture = Image.fromarray((255 * patch).astype(np.uint8))
            digest = hashlib.sha256(text.encode()).digest()
            unclear = np.random.default_rng(np.frombuffer(digest, np.uint32))
            row = np.tanh(self.preprocess(picture).reshape(-1) @ self._weights.T / 8)
            rows.append(row + 1.2 * unclear.normal(size=self.width))
        return self._unit(np.array(rows))

    def _unit(self, rows):
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True)
class Colours:
    """A source with three domains; the last knows half of the classes, in another order."""

    per_class: int = 12
    name: str = "colours"

    @property
    def shots(self):
        return self.per_class

    @property
    def datasets(self):
        return ("plain", "noisy", "few")

    def knows(self, dataset):
        return dataset in self.datasets

    def problems(self, dataset, split):
        return [f"{dataset}: no val"] if (dataset, split) == ("few", "val") else []

    def census(self, dataset, split):
        return Census(expected=self.per_class * len(self.class_ids(dataset)))

    def class_ids(self, dataset):
        return NAMES[::-2] if dataset == "few" else NAMES

    def train_set(self, dataset, *, transfer):
        return "plain"

    def images(self, dataset, split):
        names = self.class_ids(dataset)
        labels = np.repeat(np.arange(len(names)), self.per_class)
        seed = ["test", "val", "train"].index(split) * 10 + self.datasets.index(dataset)
        return Patches(
            name=dataset,
            class_names=names,
            keys=tuple(f"{i}.png" for i in range(len(labels))),
            labels=labels,
            templates=("a {} patch.", "something {}."),
            noise=0.02 if dataset == "plain" else 0.1,
            seed=seed,
        )
