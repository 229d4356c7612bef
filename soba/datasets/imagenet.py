"""ImageNet's validation set and its four shifted test sets: one folder a class.

Layouts of CoOp and TDA, or of TPT. A label is looked up from the folder's name, never taken from
its position: TPT lists the V2 folders "0" to "999" in string order (0, 1, 10, 100, ...) and mends
that with a permuted class list, and one wrong folder in ImageNet-A or -R shifts every label after
it; both traps give an accuracy near 0. The official TDA lists folders with a helper that drops
every name containing "sh", so that images called after mushrooms or fish go untested:
`tda_listing=True` does the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from soba.datasets._facts import Facts, ImageNetClass, Survey, imagenet_classes
from soba.datasets._listing import text_lines
from soba.datasets.base import ImageSet
from soba.encode.image_files import Entries, entries, is_image, some

_EVEN = ("imagenet", "imagenet-v2")  # the same number of test images in every class
_WNID = re.compile(r"n\d{8}")
_STRING_ORDER = [int(name) for name in sorted(map(str, range(1000)))]
_LIKE = "0, 1, 10, 100, 101, ..."


def survey(facts: Facts, root: Path, split: str, *, tda_listing: bool = False) -> Survey:
    """Look for one of the five sets below `root`."""
    places = [place.format(split={"test": "val"}.get(split, split)) for place in facts.images]
    place = next((place for place in places if (root / place).is_dir()), None)
    if place is None:
        return Survey(None, [f"{root}: has no folder {' or '.join(places)}"])
    folder, classes = root / place, imagenet_classes(facts.name)
    names = folder_names(facts.name)
    folders, loose, _ = entries(folder)
    there, nothing = set(folders), Entries([], [], [])
    inside = {name: entries(folder / name) if name in there else nothing for name in names}
    images = [[file for file in listing.files if is_image(file)] for listing in inside.values()]
    problems = _unknown_folders(facts.name, folder, folders, loose)
    problems += _order_of_files(folder, names, classes, images)
    if facts.name == "imagenet-v2":
        problems += _order_of_list(root / Path(place).parts[0] / "classnames.txt")
    too_many, gaps = _counts(facts, folder, split, images)
    problems += too_many
    dangling = [f"{name}/{file}" for name in names for file in inside[name].dangling]
    if dangling:
        gaps.append(f"{folder}: links that lead nowhere: {some(dangling)}")
    others = [
        f"{name}/{file}" for name in names for file in inside[name].files if not is_image(file)
    ]
    remarks: list[str] = []
    if others:  # where images are missing, these may be the missing ones renamed
        said = f"{folder}: files without an image's name: {some(others)}"
        (gaps if gaps else remarks).append(said)
    pairs = [
        (f"{name}/{file}", label)
        for label, (name, kept) in enumerate(zip(names, images, strict=True))
        for file in kept
        if not (tda_listing and "sh" in file)
    ]
    if not pairs:
        return Survey(None, problems + gaps)
    image_set = ImageSet(
        f"{facts.name}-tda-listing" if tda_listing else facts.name,
        tuple(row.name for row in classes),
        tuple(key for key, _ in pairs),
        np.array([label for _, label in pairs], np.int64),
        root=folder,
    )
    return Survey(image_set, problems, gaps, remarks)


def folder_names(name: str) -> list[str]:
    """What the class folders of a set are called, in label order.

    Examples
    --------
    >>> folder_names("imagenet-v2")[:3], folder_names("imagenet-r")[:2]
    (['0', '1', '2'], ['n01443537', 'n01484850'])
    """
    if name == "imagenet-v2":
        return [str(label) for label in range(1000)]
    return [row.wnid for row in imagenet_classes(name)]


def _unknown_folders(name: str, folder: Path, folders: list[str], loose: list[str]) -> list[str]:
    """Folders that are no class of the set, and what that looks like."""
    images = [file for file in loose if is_image(file)]
    if images and not folders:
        return [f"{folder}: holds {len(images)} images and no class folders: {some(images)}"]
    unknown = sorted(set(folders) - set(folder_names(name)))
    if not unknown:
        return []
    hint = (
        _v2_hint(folders, unknown)
        if name == "imagenet-v2"
        else _subset_hint(name, folders, unknown)
    )
    return [f"{folder}: folders that are no class of {name}: {some(unknown)}{hint}"]


def _v2_hint(folders: list[str], unknown: list[str]) -> str:
    if "1000" in folders and "0" not in folders:
        return "; they count from 1, the archive's from 0"
    if all(name.isdecimal() for name in unknown):
        return "; they were renamed with leading zeros, the archive's are 0 to 999"
    if all(_WNID.fullmatch(name) for name in unknown):
        return (
            f"; the archive's are 0 to 999, and renaming them in string order ({_LIKE}) is a trap"
        )
    return "; the archive's are 0 to 999"


def _subset_hint(name: str, folders: list[str], unknown: list[str]) -> str:
    for other in ("imagenet-a", "imagenet-r"):
        if other != name and set(folders) == set(folder_names(other)):
            return f"; these are the 200 classes of {other}"
    if set(unknown) <= set(folder_names("imagenet")):
        return f"; they are ImageNet's, of which {name} has only 200"
    return ""


def _order_of_files(
    folder: Path,
    names: Sequence[str],
    classes: Sequence[ImageNetClass],
    images: Sequence[Sequence[str]],
) -> list[str]:
    """Files that carry a WordNet id must lie in the folder of that class."""
    label_of = {row.wnid: label for label, row in enumerate(imagenet_classes())}
    wrong, order = [], []
    for name, row, inside in zip(names, classes, images, strict=True):
        for file in inside:
            said = _WNID.search(file)
            if said and said.group() != row.wnid:
                wrong.append(f"{name}/{file} (a folder of {row.wnid})")
                order.append((label_of[row.wnid], label_of.get(said.group())))
    if not wrong:
        return []
    if all(_STRING_ORDER[label] == other for label, other in order):
        return [
            f"{folder}: the folders are in string order ({_LIKE}), so labels are wrong; "
            f"files named after another class: {some(wrong)}"
        ]
    return [f"{folder}: files named after another class: {some(wrong)}"]


def _order_of_list(file: Path) -> list[str]:
    """CoOp and TDA name V2's folder "i" after line i of classnames.txt, where there is one."""
    if not file.is_file():
        return []
    try:
        listed = [line.split()[0] for line in text_lines(file)]
    except ValueError as error:
        return [str(error)]
    wnids = [row.wnid for row in imagenet_classes()]
    if listed == wnids:
        return []
    if listed == [wnids[label] for label in _STRING_ORDER]:
        return [f"{file}: the classes are in string order ({_LIKE}), not in label order"]
    differ = [i for i, (a, b) in enumerate(zip(listed, wnids, strict=False), 1) if a != b]
    where = f"first in line {differ[0]}" if differ else f"{len(listed)} lines"
    return [f"{file}: the classes are not ImageNet's 1,000 in label order ({where})"]


def _counts(
    facts: Facts, folder: Path, split: str, images: Sequence[Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Where there are too many images, and where too few."""
    many: list[str] = []
    few: list[str] = []
    names, classes = folder_names(facts.name), imagenet_classes(facts.name)
    empty = [
        f"{name} ({row.name})"
        for name, row, inside in zip(names, classes, images, strict=True)
        if not inside
    ]
    if empty:
        few.append(
            f"{folder}: {len(empty)} of {len(names)} classes missing or empty: {some(empty)}"
        )
    total, expected = sum(map(len, images)), facts.sizes[split]
    if expected is None:
        return many, few
    if total != expected:
        said = f"{folder}: holds {total} images, not {expected}"
        (few if total < expected else many).append(said)
    if facts.name in _EVEN:
        each = expected // facts.classes
        sizes = dict(zip(names, map(len, images), strict=True))
        over = [f"{name} ({size})" for name, size in sizes.items() if size > each]
        under = [f"{name} ({size})" for name, size in sizes.items() if 0 < size < each]
        if over:
            many.append(f"{folder}: classes that have more than {each} images: {some(over)}")
        if under:
            few.append(f"{folder}: classes that have fewer than {each} images: {some(under)}")
    return many, few
