"""Data sets of a source -> their features: made once, joined where a stream joins them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from soba.bench.feature_cache import FeatureFolder
from soba.bench.orders import join
from soba.bench.sources import Source
from soba.datasets import ImageSet
from soba.feature_set import FeatureSet

Step = Callable[[str, int], None]  # what was done, and how much work it was


def no_step(what: str, amount: int) -> None:
    """For those who do not watch."""


@dataclass(frozen=True)
class Loaded:
    """The features of a stream, and the domain of each image."""

    features: FeatureSet
    domains: np.ndarray
    class_ids: tuple[str, ...]
    encode_seconds: float


class Loader:
    """Opens the sets of a source and has their features made.

    Parameters
    ----------
    source
        Of the images.
    folder
        Of the features; its encoder makes them, with as many views as are asked for.
    """

    def __init__(self, source: Source, folder: FeatureFolder) -> None:
        self.source, self.folder = source, folder
        self._images: dict[tuple[str, str], ImageSet] = {}
        self._paths: dict[tuple[str, str, int], Path] = {}
        self._left_out: dict[Path, tuple[str, ...]] = {}
        self._outdated: set[Path] = set()  # files to be made anew
        self._loaded: dict[tuple[tuple[str, ...], str, int], Loaded] = {}

    def open(self, dataset: str, split: str) -> ImageSet:
        """A split of a set, called after both."""
        if (dataset, split) not in self._images:
            images = self.source.images(dataset, split)
            called = dataset if split == "test" else f"{dataset}-{split}"
            self._images[dataset, split] = dataclasses.replace(images, name=called)
        return self._images[dataset, split]

    def path(self, dataset: str, split: str, views: int) -> Path:
        """Where the features of a split are, or will be."""
        key = dataset, split, views
        if key not in self._paths:  # every cell asks, and a path is a long digest
            self._paths[key] = self._folder(views).path(self.open(dataset, split))
        return self._paths[key]

    def is_made(self, dataset: str, split: str, views: int) -> bool:
        """Whether there is a file of features that can stay as it is."""
        self.left_out(dataset, split, views)
        path = self.path(dataset, split, views)
        return path.exists() and path not in self._outdated

    def left_out(self, dataset: str, split: str, views: int) -> tuple[str, ...]:
        """The images that the file lacks, since they cannot be read.

        They are tried again, once: if one can be read now, the file is to be made anew.
        """
        path, folder = self.path(dataset, split, views), self._folder(views)
        if path not in self._left_out:
            if not path.exists():  # another process may make it: then it is looked at again
                return ()
            images = self.open(dataset, split)
            lacking = folder.left_out(images)
            if lacking and folder.readable_now(images):
                self._outdated.add(path)
                lacking = {}
            folder.broken.update({(images.name, key): why for key, why in lacking.items()})
            self._left_out[path] = tuple(lacking)
        return self._left_out[path]

    def features(
        self, dataset: str, split: str, views: int, step: Step = no_step
    ) -> tuple[FeatureSet, float]:
        """The features of a split, and the seconds their extraction took in all."""
        images, folder = self.open(dataset, split), self._folder(views)
        if not self.is_made(dataset, split, views):
            path = self.path(dataset, split, views)
            if path in self._outdated:
                folder.discard(images)
                self._outdated.remove(path)
            self._left_out.pop(path, None)  # known when the file is there

        def encoded(count: int) -> None:
            step(f"encoding {images.name}", count * views)

        return folder.get(images, encoded)

    def load(
        self, datasets: tuple[str, ...], split: str, views: int, step: Step = no_step
    ) -> Loaded:
        """The features of all sets of a stream, as one.

        The cells of a stream follow each other, so what was loaded last stays at hand.
        """
        key = datasets, split, views
        if key not in self._loaded:
            self._loaded = {k: v for k, v in self._loaded.items() if k[0] == datasets}
            self._loaded[key] = self._joined(datasets, split, views, step)
        return self._loaded[key]

    def prompt_features(self, dataset: str) -> np.ndarray:
        """(P, C, d): the text features of each prompt of a set by itself."""
        return self.folder.prompt_features(self.open(dataset, "test"))

    def shots(
        self, datasets: tuple[str, ...], loaded: Loaded, views: int, step: Step = no_step
    ) -> tuple[np.ndarray, np.ndarray]:
        """Labelled samples for the few-shot methods, under the labels of a stream."""
        rows, labels = [], []
        index = {key: label for label, key in enumerate(loaded.class_ids)}
        source = self.source
        for name in dict.fromkeys(source.train_set(d, transfer=False) for d in datasets):
            shots, _ = self.features(name, "train", views, step)
            mapped = np.array([index.get(key, -1) for key in source.class_ids(name)])
            assert shots.labels is not None
            carried = mapped[shots.labels]  # -1: a class that is not told apart here
            rows.append(np.asarray(shots.image_features)[carried >= 0])
            labels.append(carried[carried >= 0])
        return np.concatenate(rows), np.concatenate(labels)

    def _joined(self, datasets: tuple[str, ...], split: str, views: int, step: Step) -> Loaded:
        parts = [self.features(dataset, split, views, step) for dataset in datasets]
        ids = [self.source.class_ids(dataset) for dataset in datasets]
        seconds = sum(seconds for _, seconds in parts)
        if len(parts) == 1:
            features = parts[0][0]
            return Loaded(features, np.zeros(len(features), np.int64), ids[0], seconds)
        joined, domains = join([features for features, _ in parts], ids)
        known = tuple(dict.fromkeys(key for listed in ids for key in listed))
        return Loaded(joined, domains, known, seconds)

    def _folder(self, views: int) -> FeatureFolder:
        return dataclasses.replace(self.folder, views=views)
