"""The ten cross-dataset sets, in the folders and splits of CoOp.

Zhou et al., Learning to Prompt for Vision-Language Models; TPT, TDA and the paper use the same
splits. Nine sets have a split_zhou_*.json with train, val and test, each a list of [path below
the image folder, label, class name]; Aircraft has its own text files. The official loaders take
the labels and names as they come and find a missing image when they open it; here labels and
names are compared with CoOp's, and all files are looked for, before the first image is opened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from soba._files import parse_json
from soba.datasets._facts import SPLITS, Facts, Survey, as_spoken, coop_class_names
from soba.datasets._listing import absent_classes, by_folder, present, text_lines
from soba.datasets.base import ImageSet
from soba.encode.image_files import entries, is_image, some


class Item(NamedTuple):
    """A line of a split: where the image is, and what it shows."""

    key: str
    label: int
    class_name: str


def survey(facts: Facts, root: Path, split: str) -> Survey:
    """Look for a split of one of the ten sets below `root`."""
    images = root / facts.images[0]
    source = root / facts.splits.format(split=split)
    absent = [str(path) for path in (source, images) if not path.exists()]
    if absent:
        return Survey(None, [f"{path}: not found" for path in absent])
    try:
        read = _read_aircraft if facts.name == "aircraft" else _read_json
        splits = read(source, split)
        class_names, problems = _names(facts, source, splits)
    except (OSError, ValueError) as error:
        return Survey(None, [str(error)])
    items = list({item.key: item for item in splits[split]}.values())
    if len(items) < len(splits[split]):
        times = Counter(item.key for item in splits[split])
        twice = [key for key in times if times[key] > 1]
        problems.append(f"{source}: {split} images listed twice: {some(twice)}")
    gaps: list[str] = []
    expected = facts.sizes[split]
    if expected is not None and len(items) != expected:
        said = f"{source}: lists {len(items)} {split} images, not {expected}"
        (gaps if len(items) < expected else problems).append(said)
    there = present(images, (item.key for item in items))
    gaps += _missing(images, items, there, splits)
    items = [item for item in items if item.key in there]
    if not items:
        return Survey(None, problems + gaps)
    gaps += absent_classes((item.label for item in items), class_names, split)
    image_set = ImageSet(
        facts.name,
        tuple(as_spoken(name) for name in class_names),
        tuple(item.key for item in items),
        np.array([item.label for item in items], np.int64),
        root=images,
    )
    return Survey(image_set, problems, gaps)


def _read_json(source: Path, split: str) -> dict[str, list[Item]]:
    try:
        content = parse_json(source.read_text(encoding="utf-8"))
        splits = {
            name: [Item(str(key), int(label), str(words)) for key, label, words in lines]
            for name, lines in content.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{source}: not one of CoOp's split files ({error})") from error
    if split not in splits:
        raise ValueError(f"{source}: has no {split} split, only {', '.join(splits) or 'nothing'}")
    return splits


def _read_aircraft(source: Path, split: str) -> dict[str, list[Item]]:
    """variants.txt has the classes in order; images_variant_<split>.txt "0034309 707-320" lines."""
    variants = [line.strip() for line in _lines(source.parent / "variants.txt")]
    labels = {name: label for label, name in enumerate(variants)}
    splits: dict[str, list[Item]] = {}
    for name in SPLITS:  # the other two only tell which images belong to them
        file = source.parent / f"images_variant_{name}.txt"
        if not file.is_file():
            continue
        splits[name] = []
        for line in _lines(file):
            stem, _, variant = line.strip().partition(" ")
            if variant not in labels:
                raise ValueError(f"{file}: {variant!r} is not among the classes of variants.txt")
            splits[name].append(Item(f"{stem}.jpg", labels[variant], variant))
    return splits


def _lines(file: Path) -> list[str]:
    if not file.is_file():
        raise ValueError(f"{file}: not found")
    return text_lines(file)


def _names(
    facts: Facts, source: Path, splits: Mapping[str, Sequence[Item]]
) -> tuple[tuple[str, ...], list[str]]:
    """Class names as the files on disk have them, and where that is not what CoOp has."""
    known = coop_class_names(facts.name)
    names = list(known)
    pairs = sorted({(item.label, item.class_name) for lines in splits.values() for item in lines})
    differing = []
    for label, name in pairs:
        if not 0 <= label < len(known):
            raise ValueError(
                f"{source}: label {label} ({name!r}) is not within 0..{len(known) - 1}"
            )
        if as_spoken(name).lower() != as_spoken(known[label]).lower():
            differing.append(f"{label} is {name!r}, not {known[label]!r}")
            names[label] = name
    if not differing:
        return known, []
    order = sorted(names) == sorted(known)
    what = "label order" if order else "class names"
    return tuple(names), [f"{source}: other {what} than CoOp's: label {some(differing)}"]


def _missing(
    images: Path, items: Sequence[Item], there: set[str], splits: Mapping[str, Iterable[Item]]
) -> list[str]:
    """Missing folders and files by name, and the files that may be the missing ones renamed."""
    absent = [item.key for item in items if item.key not in there]
    if not absent:
        return []
    groups = by_folder(absent)
    folders = [folder for folder in groups if not (images / folder).is_dir()]
    problems = [f"{images}: {len(absent)} of {len(items)} images missing: {some(absent)}"]
    if folders:
        problems.append(f"{images}: missing folders: {some(folders)}")
    listed = {item.key for lines in splits.values() for item in lines}
    strangers = []
    for folder in groups.keys() - set(folders):
        keys = (str(PurePosixPath(folder) / name) for name in entries(images / folder).files)
        strangers += [key for key in keys if is_image(key.rpartition("/")[2]) and key not in listed]
    if strangers:
        problems.append(
            f"{images}: files beside them in no split, perhaps renamed: {some(sorted(strangers))}"
        )
    return problems
