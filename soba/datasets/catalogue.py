"""The fifteen data sets of the two benchmarks by name, and whether a disk has them as it should."""

from __future__ import annotations

import dataclasses
import difflib
import os
import warnings
from pathlib import Path

from soba.datasets import coop_layout, imagenet
from soba.datasets._facts import (
    SPLITS,
    Facts,
    Survey,
    as_spoken,
    coop_class_names,
    imagenet_classes,
)
from soba.datasets._facts import catalogue as _catalogue
from soba.datasets.base import ImageSet
from soba.encode import prompts

NAMES = tuple(_catalogue())
GROUPS = {
    group: tuple(name for name, facts in _catalogue().items() if facts.group == group)
    for group in ("ood", "cross")
}


def load(
    name: str, root: str | os.PathLike[str], split: str = "test", *, incomplete: bool = False
) -> ImageSet:
    """A data set from the folder that holds all of them.

    Where classes, labels, counts or files are not those of the literature it raises a ValueError
    that lists the differences; `survey` has the images that are there all the same. Images
    are listed, not opened.

    Parameters
    ----------
    name
        One of `NAMES`.
    root
        The data root: `$DATA` in the instructions of CoOp, TDA and TPT.
    split
        "test", "train" or "val". ImageNet has no val, since its validation images are the test
        set; the four sets made from it have only test. Train and val are called "dtd-train".
    incomplete
        Missing images are no difference; wrong labels, names or folders still are.
    """
    seen = survey(name, root, split)
    problems = _wrong(seen, incomplete)
    listed = "".join(f"\n  {problem}" for problem in problems)
    if seen.image_set is None:
        raise ValueError(f"{name}: no {split} images found{listed}")
    if problems:
        count = len(seen.image_set)
        way_on = f" (incomplete=True goes on with the {count} images that are there)"
        raise ValueError(
            f"{name}: the {split} split is not that of the literature"
            f"{'' if seen.problems else way_on}{listed}"
        )
    for remark in seen.remarks:
        warnings.warn(f"{name}: {remark}", stacklevel=2)
    return seen.image_set


def check(
    name: str, root: str | os.PathLike[str], split: str = "test", *, incomplete: bool = False
) -> list[str]:
    """What is wrong with a data set on disk, one sentence each; empty if nothing is.

    `incomplete`: missing images are not wrong, as long as there are some.
    """
    return _wrong(survey(name, root, split), incomplete)


def survey(
    name: str, root: str | os.PathLike[str], split: str = "test", *, tda_listing: bool = False
) -> Survey:
    """All that a look at the disk tells of a data set: `load` and `check` in one.

    `tda_listing` drops the images whose names contain "sh", as the official TDA does (ImageNet-A,
    -V2, -R and -Sketch).
    """
    seen = _survey(name, root, split, tda_listing)
    if seen.image_set is None:
        return seen
    called = seen.image_set.name if split == "test" else f"{seen.image_set.name}-{split}"
    images = dataclasses.replace(seen.image_set, name=called, templates=templates_for(name))
    return seen._replace(image_set=images)


def expected(name: str, split: str = "test") -> int | None:
    """How many images the literature's split has, where that is known.

    Examples
    --------
    >>> expected("imagenet-sketch"), expected("food101", "train")
    (50889, None)
    """
    return _facts(name).sizes[split]


def class_names(name: str) -> tuple[str, ...]:
    """The classes of a set in label order, as a prompt says them; needs no images.

    Examples
    --------
    >>> class_names("food101")[:2], class_names("imagenet-a")[:2]
    (('apple pie', 'baby back ribs'), ('stingray', 'goldfinch'))
    """
    if _facts(name).group == "ood":
        return tuple(row.name for row in imagenet_classes(name))
    return tuple(as_spoken(known) for known in coop_class_names(name))


def templates_for(name: str) -> tuple[str, ...]:
    """The prompts a set is scored with: TDA's, hand-made for each."""
    _facts(name)
    return prompts.templates(name)


def _wrong(seen: Survey, incomplete: bool) -> list[str]:
    return [*seen.problems, *(() if incomplete else seen.gaps)]


def _survey(name: str, root: str | os.PathLike[str], split: str, tda_listing: bool) -> Survey:
    facts = _facts(name)
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if tda_listing and not (facts.group == "ood" and name != "imagenet"):
        raise ValueError(f"{name}: the official TDA does not list its folders; no tda_listing")
    if not Path(root).is_dir():
        raise ValueError(f"{root}: not a folder")
    if facts.group == "cross":
        return coop_layout.survey(facts, Path(root), split)
    if split == "val" and name == "imagenet":
        raise ValueError("imagenet: has no val split, its validation images are the test set")
    if split != "test" and name != "imagenet":
        raise ValueError(f"{name}: has only a test split")
    return imagenet.survey(facts, Path(root), split, tda_listing=tda_listing)


def _facts(name: str) -> Facts:
    if name not in _catalogue():
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown data set {name!r}.{hint} Known: {', '.join(NAMES)}")
    return _catalogue()[name]
