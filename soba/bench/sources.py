"""The three benchmarks as sources of images: two on disk, and the icons that need none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from soba.datasets import GROUPS, NAMES, ImageSet, class_names, expected, few_shot, survey
from soba.datasets._facts import Survey, imagenet_classes
from soba.datasets.icons import DOMAINS, icons

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
        found = self.images(dataset, split)
        return [] if len(found) else [f"{dataset}: the domain has no drawings"]

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
class OnDisk:
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
    _surveys: dict[tuple[str, str], Survey] = field(default_factory=dict, repr=False)

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        return _chosen(self.chosen, GROUPS[self.name])

    def knows(self, dataset: str) -> bool:
        return dataset in NAMES

    def problems(self, dataset: str, split: str) -> list[str]:
        try:
            found = self._survey(dataset, split)
        except ValueError as error:  # the set has no such split
            return [f"{dataset}: {str(error).removeprefix(f'{dataset}: ')}"]
        gaps = () if self.incomplete else found.gaps
        return [f"{dataset}: {problem}" for problem in (*found.problems, *gaps)]

    def images(self, dataset: str, split: str) -> ImageSet:
        found = self._survey(dataset, split).image_set
        wrong = self.problems(dataset, split)
        if found is None or wrong:
            raise ValueError("\n".join(wrong))
        return few_shot(found, self.shots, _SHOT_SEED) if split == "train" else found

    def census(self, dataset: str, split: str) -> Census:
        return Census(
            expected(dataset, split),
            "tda" if self._as_tda(dataset) else None,
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


def _chosen(chosen: Sequence[str], known: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"no data set {unknown[0]!r} here; there are: {', '.join(known)}")
    return tuple(name for name in known if name in chosen) if chosen else known
