"""Data roots in exactly the layouts of CoOp, TDA and TPT, made of one tiny picture many times."""

import json
import os
import shutil
from pathlib import Path

from PIL import Image

from soba.datasets._facts import catalogue, coop_class_names, imagenet_classes
from soba.datasets.imagenet import folder_names

SPLIT_SIZES = {"train": 3, "val": 2, "test": 2}  # images a class in a miniature split


class Pictures:
    """Puts the same small picture wherever it is asked to; links are quicker than copies."""

    def __init__(self, folder: Path):
        self.source = folder / "picture.jpg"
        Image.new("RGB", (8, 8), (200, 30, 60)).save(self.source)

    def put(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._link(path)

    def put_all(self, folder: Path, keys) -> None:
        for parent in {os.path.dirname(key) for key in keys}:
            (folder / parent).mkdir(parents=True, exist_ok=True)
        for key in keys:
            self._link(folder / key)

    def _link(self, path: Path) -> None:
        try:
            os.link(self.source, path)
        except OSError:  # a file system without links, or with few
            shutil.copy(self.source, path)


def generated_split(name: str) -> dict[str, list]:
    """A small split with all classes of a set, for the sets whose real split is not at hand."""
    return {
        split: [
            [f"{label % 10}/{split}_{label}_{i}.jpg", label, words]
            for label, words in enumerate(coop_class_names(name))
            for i in range(size)
        ]
        for split, size in SPLIT_SIZES.items()
    }


def coop_tree(root: Path, pictures: Pictures, name: str, splits: dict, only=("test",)) -> Path:
    """Writes the split file and the images of the splits named by `only`."""
    facts = catalogue()[name]
    images = root / facts.images[0]
    images.mkdir(parents=True)
    (root / facts.splits).write_text(json.dumps(splits))
    pictures.put_all(images, [key for split in only for key, _, _ in splits[split]])
    return images


def aircraft_tree(root: Path, pictures: Pictures) -> Path:
    """variants.txt, the three lists, and images/, 3,333 of them in the test list."""
    variants = coop_class_names("aircraft")
    folder = root / "fgvc_aircraft"
    folder.mkdir(parents=True)
    (folder / "variants.txt").write_text("".join(f"{name}\n" for name in variants))
    number = 1
    for split, size in (("train", 100), ("val", 100), ("test", 3333)):
        lines = [f"{number + i:07d} {variants[i % 100]}" for i in range(size)]
        number += size
        (folder / f"images_variant_{split}.txt").write_text("\n".join(lines) + "\n")
        pictures.put_all(folder / "images", [f"{line.split()[0]}.jpg" for line in lines])
    return folder


def imagenet_tree(
    root: Path, pictures: Pictures, name: str, *, layout=0, images=None, folders=None, file=None
) -> Path:
    """`images` in all, spread over `folders`; `layout` 0 is CoOp's and TDA's, 1 TPT's.

    Folders are slow to remove: most wrong trees do with few of the thousand.
    """
    facts = catalogue()[name]
    place = root / facts.images[layout].format(split="val")
    folders = folder_names(name) if folders is None else folders
    total = facts.sizes["test"] if images is None else images
    file = file or (lambda label, number: f"image_{number}.JPEG")
    keys = [
        f"{folder}/{file(label, number)}"
        for label, folder in enumerate(folders)
        for number in range(label, total, len(folders))
    ]
    pictures.put_all(place, keys)
    if layout == 0:
        lines = [f"{row.wnid} {row.name}\n" for row in imagenet_classes()]
        (root / Path(facts.images[0]).parts[0] / "classnames.txt").write_text("".join(lines))
    (place / "README.txt").write_text("as in the archives of -A and -R\n")
    return place
