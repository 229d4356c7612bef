"""What is known of the fifteen data sets before a disk is looked at; the facts are in data/."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

from soba.datasets.base import ImageSet

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Facts:
    """One data set as the literature has it.

    Attributes
    ----------
    sizes
        Images of each split, None where not known.
    images
        Where the images may lie below the data root: CoOp's and TDA's layout, then TPT's.
    splits
        The file that lists the splits, or one file a split; empty if folders are the labels.
    """

    name: str
    group: str
    classes: int
    sizes: Mapping[str, int | None]
    images: tuple[str, ...]
    splits: str


class Survey(NamedTuple):
    """What was found on disk: the images that are there, if any, and a sentence for each finding.

    Attributes
    ----------
    problems
        What makes labels or counts wrong.
    gaps
        What is only missing: the other images can be scored, if it is said that they are not all.
    remarks
        What does no harm.
    """

    image_set: ImageSet | None
    problems: Sequence[str]
    gaps: Sequence[str] = ()
    remarks: Sequence[str] = ()


class ImageNetClass(NamedTuple):
    """A row of imagenet.csv."""

    wnid: str
    name: str
    in_a: bool
    in_r: bool


@cache
def catalogue() -> dict[str, Facts]:
    """The fifteen sets, in the order of the paper's tables."""
    facts = {}
    for row in csv.DictReader(_text("catalogue.csv").splitlines()):
        sizes = {split: int(row[split]) if row[split] else None for split in SPLITS}
        images = tuple(row["images"].split("|"))
        facts[row["name"]] = Facts(
            row["name"], row["group"], int(row["classes"]), sizes, images, row["splits"]
        )
    return facts


@cache
def coop_class_names(name: str) -> tuple[str, ...]:
    """Class names of a cross-dataset set, spelled as in CoOp's splits, underscores and all."""
    return tuple(json.loads(_text("class_names.json"))[name])


@cache
def imagenet_classes(name: str = "imagenet") -> tuple[ImageNetClass, ...]:
    """The classes of an ImageNet set in label order.

    >>> [len(imagenet_classes(name)) for name in ("imagenet-v2", "imagenet-a", "imagenet-r")]
    [1000, 200, 200]
    """
    rows = [
        ImageNetClass(row["wnid"], row["name"], row["in_a"] == "1", row["in_r"] == "1")
        for row in csv.DictReader(_text("imagenet.csv").splitlines())
    ]
    if name == "imagenet-a":
        rows = [row for row in rows if row.in_a]
    elif name == "imagenet-r":
        rows = [row for row in rows if row.in_r]
    return tuple(rows)


def as_spoken(class_name: str) -> str:
    """A class name as a prompt says it: every method writes underscores as spaces."""
    return class_name.replace("_", " ")


def _text(file: str) -> str:
    return (resources.files("soba.datasets") / "data" / file).read_text(encoding="utf-8")
