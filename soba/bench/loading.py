"""Streams of a plan -> their features: made once, joined, and with what a method needs besides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from soba.bench.feature_folder import FeatureFolder
from soba.bench.orders import join
from soba.bench.plan import Plan, Stream, is_few_shot
from soba.datasets import ImageSet
from soba.encode.store import FeatureSet
from soba.registry import adapter_class

Step = Callable[[str, int], None]  # what was done, and how much work it was


@dataclass(frozen=True)
class Loaded:
    """The features of a stream, and the domain of each image."""

    features: FeatureSet
    domains: np.ndarray
    class_ids: tuple[str, ...]
    encode_seconds: float


class Loader:
    """Opens the sets of a plan and has their features made.

    Parameters
    ----------
    plan
        Says which sets and how many views.
    folder
        Of the features; its encoder makes them.
    """

    def __init__(self, plan: Plan, folder: FeatureFolder) -> None:
        if folder.views != plan.views:
            raise ValueError(f"{folder.views} views are made where {plan.views} are planned")
        self.plan = plan
        # Methods that can do with one view have cells of their own, whatever the others take.
        self._folders = {plan.views: folder} | {1: dataclasses.replace(folder, views=1)}
        self._images: dict[tuple[str, str], ImageSet] = {}
        self._paths: dict[tuple[str, str, int], Path] = {}
        self._left_out: dict[Path, tuple[str, ...]] = {}
        self._outdated: set[Path] = set()  # files to be made anew

    def open(self, dataset: str, split: str) -> ImageSet:
        """A split of a set, called after both."""
        if (dataset, split) not in self._images:
            images = self.plan.source.images(dataset, split)
            called = dataset if split == "test" else f"{dataset}-{split}"
            self._images[dataset, split] = dataclasses.replace(images, name=called)
        return self._images[dataset, split]

    def path(self, dataset: str, split: str, views: int) -> Path:
        """Where the features of a split are, or will be."""
        key = dataset, split, views
        if key not in self._paths:  # every cell asks, and a path is a long digest
            self._paths[key] = self._folders[views].path(self.open(dataset, split))
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
        path, folder = self.path(dataset, split, views), self._folders[views]
        if path not in self._left_out:
            images = self.open(dataset, split)
            lacking = folder.left_out(images)
            if lacking and folder.readable_now(images):
                self._outdated.add(path)
                lacking = {}
            folder.broken.update({(images.name, key): why for key, why in lacking.items()})
            self._left_out[path] = tuple(lacking)
        return self._left_out[path]

    def features(
        self, dataset: str, split: str, views: int, step: Step
    ) -> tuple[FeatureSet, float]:
        """The features of a split, and the seconds their extraction took in all."""
        images, folder = self.open(dataset, split), self._folders[views]
        if not self.is_made(dataset, split, views):
            path = self.path(dataset, split, views)
            if path in self._outdated:
                folder.discard(images)
                self._outdated.remove(path)
            del self._left_out[path]  # known when the file is there

        def encoded(count: int) -> None:
            step(f"encoding {images.name}", count * views)

        return folder.get(images, encoded)

    def load(self, stream: Stream, split: str, views: int, step: Step) -> Loaded:
        """The features of all sets of a stream, as one."""
        parts = [self.features(dataset, split, views, step) for dataset in stream.datasets]
        ids = [self.plan.source.class_ids(dataset) for dataset in stream.datasets]
        seconds = sum(seconds for _, seconds in parts)
        if len(parts) == 1:
            features = parts[0][0]
            return Loaded(features, np.zeros(len(features), np.int64), ids[0], seconds)
        joined, domains = join([features for features, _ in parts], ids)
        known = tuple(dict.fromkeys(key for listed in ids for key in listed))
        return Loaded(joined, domains, known, seconds)

    def equipped(self, stream: Stream, method: str, loaded: Loaded, step: Step) -> FeatureSet:
        """The features with prompts and labelled samples, for the methods that take them."""
        features, views = loaded.features, self.plan.views_of(method)
        if adapter_class(method).per_prompt:
            prompts = self._folders[views].prompt_features(self.open(stream.datasets[0], "test"))
            features = dataclasses.replace(features, prompt_features=prompts)
        if not is_few_shot(method):
            return features
        rows, labels = [], []
        index = {key: label for label, key in enumerate(loaded.class_ids)}
        source = self.plan.source
        for name in dict.fromkeys(source.train_set(d, transfer=False) for d in stream.datasets):
            shots, _ = self.features(name, "train", views, step)
            mapped = np.array([index.get(key, -1) for key in source.class_ids(name)])
            assert shots.labels is not None
            found = mapped[shots.labels]  # -1: a class that is not told apart here
            rows.append(np.asarray(shots.image_features)[found >= 0])
            labels.append(found[found >= 0])
        features = dataclasses.replace(
            features,
            support_features=np.concatenate(rows),
            support_labels=np.concatenate(labels),
        )
        if self.plan.tune_on not in ("val", "test"):
            return features
        held_out = loaded
        if self.plan.tune_on == "val":
            held_out = self.load(stream, "val", views, step)
        return dataclasses.replace(
            features,
            val_features=held_out.features.image_features,
            val_labels=held_out.features.labels,
        )
