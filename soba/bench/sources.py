"""Sources of images: the two benchmarks on disk, icons that need none, and anyone's folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from soba.adapt.tda import TDA
from soba.bench.sendable import Sendable
from soba.datasets import GROUPS, NAMES, ImageSet, class_names, expected, few_shot, survey
from soba.datasets._facts import Survey, imagenet_classes
from soba.datasets.folder import from_csv, from_folder
from soba.datasets.icons import DOMAINS, icons
from soba.tune.classes import match_classes

_SHOT_SEED = 1  # CoOp's first


@dataclass(frozen=True)
class Census:
    """What is known of a split besides its images.

    Attributes
    ----------
    expected
        Images of the literature's split, where there is one.
    listing
        "tda" where images were left out as the official TDA does.
    remarks
        What was found on disk and does no harm.
    """

    expected: int | None = None
    listing: str | None = None
    remarks: tuple[str, ...] = ()


class Source(Protocol):
    """Where the data sets of a benchmark come from.

    A split is "test", "val" for settings to be searched on, or "train": labelled samples for the
    few-shot methods.
    """

    @property
    def name(self) -> str: ...

    @property
    def datasets(self) -> tuple[str, ...]: ...

    @property
    def shots(self) -> int:
        """Labelled samples of each class in a train split."""

    def knows(self, dataset: str) -> bool:
        """Whether a set can be had, in the benchmark or besides it."""

    def problems(self, dataset: str, split: str) -> list[str]:
        """What is wrong with a set, a sentence each; looks at no image."""

    def images(self, dataset: str, split: str) -> ImageSet:
        """A split of a set."""

    def census(self, dataset: str, split: str) -> Census:
        """What is known of a split besides its images."""

    def class_ids(self, dataset: str) -> tuple[str, ...]:
        """What tells classes apart across sets, in label order."""

    def train_set(self, dataset: str, *, transfer: bool) -> str:
        """The set whose train split is learned from; `transfer`: as prompts are, for all sets."""


@dataclass(frozen=True)
class Icons:
    """The five domains of icons. Other seeds draw the validation and the training images.

    The few-shot methods learn from the source domain, as those of the OOD benchmark from ImageNet.
    """

    chosen: Sequence[str] = ()
    per_class: int = 16
    shots: int = 16
    seed: int = 0
    size: int = 96
    name: str = "icons"

    @property
    def datasets(self) -> tuple[str, ...]:
        return _chosen(self.chosen, tuple(f"icons-{domain}" for domain in DOMAINS))

    def knows(self, dataset: str) -> bool:
        return dataset in {f"icons-{domain}" for domain in DOMAINS}

    def problems(self, dataset: str, split: str) -> list[str]:
        return (
            [] if len(self.images(dataset, split)) else [f"{dataset}: the domain has no drawings"]
        )

    def images(self, dataset: str, split: str) -> ImageSet:
        domain = dataset.removeprefix("icons-")
        count, seed = {
            "test": (self.per_class, self.seed),
            "val": (self.per_class, self.seed + 1),
            "train": (self.shots, self.seed + 2),
        }[split]
        return icons(domain, count, seed=seed, size=self.size)

    def census(self, dataset: str, split: str) -> Census:
        return Census()

    def class_ids(self, dataset: str) -> tuple[str, ...]:
        return icons(dataset.removeprefix("icons-"), 1).class_names

    def train_set(self, dataset: str, *, transfer: bool) -> str:
        return "icons-source"


@dataclass(frozen=True)
class OnDisk(Sendable):
    """The OOD or the cross-dataset benchmark below a data root, as CoOp, TDA and TPT lay it out.

    Parameters
    ----------
    incomplete
        Go on where images are missing; a census then tells how many there should be.
    tda_listing
        Leave out the images of ImageNet's variants that the official TDA overlooks.
    """

    name: str
    root: Path
    chosen: Sequence[str] = ()
    shots: int = 16
    incomplete: bool = False
    tda_listing: bool = False

    @cached_property
    def _surveys(self) -> dict[tuple[str, str], Survey]:
        return {}

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        return _chosen(self.chosen, GROUPS[self.name])

    def knows(self, dataset: str) -> bool:
        return dataset in NAMES

    def problems(self, dataset: str, split: str) -> list[str]:
        try:
            surveyed = self._survey(dataset, split)
        except ValueError as error:  # the set has no such split
            return [f"{dataset}: {str(error).removeprefix(f'{dataset}: ')}"]
        gaps = () if self.incomplete else surveyed.gaps
        return [f"{dataset}: {problem}" for problem in (*surveyed.problems, *gaps)]

    def images(self, dataset: str, split: str) -> ImageSet:
        images = self._survey(dataset, split).image_set
        wrong = self.problems(dataset, split)
        if images is None or wrong:
            raise ValueError("\n".join(wrong))
        return few_shot(images, self.shots, _SHOT_SEED) if split == "train" else images

    def census(self, dataset: str, split: str) -> Census:
        return Census(
            expected(dataset, split),
            TDA.card.name if self._as_tda(dataset) else None,
            tuple(f"{dataset}: {remark}" for remark in self._survey(dataset, split).remarks),
        )

    def class_ids(self, dataset: str) -> tuple[str, ...]:
        if dataset in GROUPS["ood"]:  # two classes are called "missile"
            return tuple(row.wnid for row in imagenet_classes(dataset))
        return class_names(dataset)

    def train_set(self, dataset: str, *, transfer: bool) -> str:
        return "imagenet" if transfer or self.name == "ood" else dataset

    def _survey(self, dataset: str, split: str) -> Survey:
        key = dataset, split
        if key not in self._surveys:  # a listing of 50,000 files, asked for more than once
            self._surveys[key] = survey(
                dataset, self.root, split, tda_listing=self._as_tda(dataset)
            )
        return self._surveys[key]

    def _as_tda(self, dataset: str) -> bool:
        return self.tda_listing and dataset in GROUPS["ood"] and dataset != "imagenet"


@dataclass(frozen=True)
class Folders(Sendable):
    """Anyone's labelled images: class folders, or tables with labels. Each is a data set.

    They are called by the names of their folders or files, and have a test split only.

    Parameters
    ----------
    train
        One more of them, with all their classes by name: the few-shot methods learn from `shots`
        of its images of each class, and it is not streamed.
    """

    paths: tuple[Path, ...]
    train: Path | None = None
    shots: int = 16
    name: str = "folder"

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("no folder was named")
        places = self.paths if self.train is None else (*self.paths, self.train)
        if self.train is not None and self.train.resolve() in {p.resolve() for p in self.paths}:
            raise ValueError(f"{self.train}: few-shot methods would be tested on what they learned")
        if len(self._by_name) < len(places):
            listed = ", ".join(map(str, places))
            raise ValueError(f"two of these have one name, so they cannot be told apart: {listed}")

    @cached_property
    def _listed(self) -> dict[str, ImageSet]:
        return {}

    @cached_property
    def _by_name(self) -> dict[str, Path]:
        return {_name_of(path): path.resolve() for path in (*self.paths, self.train) if path}

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(map(_name_of, self.paths))

    def knows(self, dataset: str) -> bool:
        return dataset in self.datasets

    def problems(self, dataset: str, split: str) -> list[str]:
        if split == "val" or (split == "train" and self.train is None):
            hint = ": say --train" if split == "train" else ""
            return [f"{dataset}: has only a test split, and a {split} split is needed{hint}"]
        try:
            images = self.images(dataset, split)
        except ValueError as error:
            # The listing advises on options that are not those of a benchmark.
            return [str(error).partition(";")[0]]
        return [] if split == "test" else self._lacks(images)

    def _lacks(self, train: ImageSet) -> list[str]:
        """The classes of the data sets that the train split has no images of."""
        assert train.labels is not None
        there = [train.class_names[label] for label in np.unique(train.labels)]
        problems = []
        for dataset in self.datasets:
            if self.problems(dataset, "test"):  # which are told by themselves
                continue
            try:
                match_classes(self.images(dataset, "test").class_names, there)
            except ValueError as error:
                problems.append(f"{self.train}: the few-shot methods need {dataset}'s: {error}")
        return problems

    def images(self, dataset: str, split: str) -> ImageSet:
        images = self._labelled(dataset)
        return few_shot(images, self.shots, _SHOT_SEED) if split == "train" else images

    def _labelled(self, dataset: str) -> ImageSet:
        if dataset not in self._listed:
            path = self._by_name[dataset]
            listing = from_csv if path.suffix.lower() == ".csv" else from_folder
            images = listing(path)
            if images.labels is None:
                raise ValueError(f"{path}: has no labels: neither class folders nor a column label")
            self._listed[dataset] = images
        return self._listed[dataset]

    def census(self, dataset: str, split: str) -> Census:
        return Census()

    def class_ids(self, dataset: str) -> tuple[str, ...]:
        # Folders of different people: "Red_Panda" is "red panda".
        return tuple(name.lower() for name in self._labelled(dataset).class_names)

    def train_set(self, dataset: str, *, transfer: bool) -> str:
        return dataset if self.train is None else _name_of(self.train)


def _name_of(path: Path) -> str:
    path = path.resolve()
    return path.stem if path.suffix.lower() == ".csv" else path.name


def _chosen(chosen: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"no data set {unknown[0]!r} here; there are: {', '.join(known)}")
    return tuple(name for name in known if name in chosen) if chosen else known
