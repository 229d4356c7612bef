"""Images of which a few are labelled: a feature file or a folder, and where the labels are from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from soba.datasets.archive import ArchiveSet
from soba.datasets.base import ImageSet
from soba.datasets.folder import from_folder
from soba.datasets.labels import read_labels
from soba.encode.encoder import Encoder
from soba.encode.features import encode_stream
from soba.encode.image_files import some
from soba.encode.lists import read_table
from soba.encode.pictures import FilePicture
from soba.encode.prompts import classifier
from soba.feature_set import FeatureSet
from soba.studies.check import few_per_class


@dataclass(frozen=True)
class Draw:
    """So many labels of each class, of those that the images come with; None: all."""

    per_class: int | None
    seed: int = 0


@dataclass(frozen=True)
class SomeLabelled:
    """Images, and the labels that may be used."""

    features: FeatureSet
    labels: np.ndarray  # (n,) class indices, -1 where nobody has labelled
    broken: Mapping[str, str]  # path -> why it could not be read

    def key(self, row: int) -> str:
        """What an image is called: its path, or the number of its row."""
        keys = self.features.keys
        return f"row {row}" if keys is None else keys[row]


def read_few(source: Path, class_names: Sequence[str]) -> dict[str, int]:
    """Path -> class index: of class folders, or of a table with the columns path and label.

    Rows of a table without a label are images that somebody is still to label.
    """
    if source.is_dir():
        images = from_folder(source, class_names, labelled=True)
        assert images.labels is not None
        rows = range(len(images))
        return {str(images.path(row)): int(images.labels[row]) for row in rows}
    if source.suffix.lower() != ".csv":
        raise ValueError(f"{source}: labels are in class folders, or in a .csv of path and label")
    columns, lines = read_table(source)
    if "label" not in columns:
        raise ValueError(f"{source}: needs a column 'label', has {', '.join(columns)}")
    pairs = [((line["path"] or "").strip(), (line["label"] or "").strip()) for line in lines]
    labelled = {path: label for path, label in pairs if path and label}
    _, indices = read_labels(source, list(labelled.values()), class_names)
    return dict(zip(labelled, indices, strict=True))


def of_features(features: FeatureSet, wanted: Draw | Path | None) -> SomeLabelled:
    """A feature file, with as many of its labels as are wanted, or with those of a table."""
    if isinstance(wanted, Path):
        images = SomeLabelled(features, np.full(len(features), -1, np.int64), {})
        keys = [images.key(row) for row in range(len(features))]
        labels = _by_key(keys, read_few(wanted, class_names_of(features)), wanted)
        return replace(images, labels=labels)
    return SomeLabelled(features, _drawn(features.labels, len(features), wanted), {})


def of_images(
    encoder: Encoder,
    images: ImageSet,
    wanted: Draw | Path | None,
    templates: Sequence[str],
    *,
    batch: int = 64,
    step: Callable[[int], None] = lambda done: None,
) -> SomeLabelled:
    """Images that are encoded here; labelled ones that are not among them are taken in, too.

    A picture counts once, under whatever names it comes: copies that were put into class folders
    are the images that they are copies of. `step` is called with how many are done.
    """
    if isinstance(images, ArchiveSet):
        raise ValueError(f"{images.name}: of archives make features first: soba embed")
    given = {os.path.realpath(images.path(at)): str(images.path(at)) for at in range(len(images))}
    labels = _labels_by_path(images, list(given), wanted)
    paths = list((given | {path: path for path in labels if path not in given}).items())
    rows: dict[int, int] = {}  # content -> row
    keys, known, kept = list[str](), list[int](), list[np.ndarray]()
    broken: dict[str, str] = {}
    for part in encode_stream(encoder, (FilePicture(name) for _, name in paths), batch=batch):
        broken |= {paths[index][1]: why for index, why in part.broken.items()}
        for index, picture, feature in zip(part.indices, part.read, part.features, strict=True):
            path, name = paths[index]
            row = rows.setdefault(picture.content_id, len(keys))
            if row == len(keys):
                keys.append(name)
                known.append(-1)
                kept.append(feature)
            known[row] = labels.get(path, known[row])
        step(part.stop)
    if not kept:
        raise ValueError("none of the images could be read")
    features = FeatureSet(
        np.stack(kept),
        classifier(encoder.encode_texts, images.class_names, templates),
        encoder.logit_scale,
        class_names=tuple(images.class_names),
        prompts=tuple(templates),
        keys=tuple(keys),
    )
    labels_by_row = np.array(known, np.int64)
    if isinstance(wanted, Path):
        return SomeLabelled(features, labels_by_row, broken)
    to_draw_from = None if images.labels is None else labels_by_row
    return SomeLabelled(features, _drawn(to_draw_from, len(keys), wanted), broken)


def _labels_by_path(
    images: ImageSet, paths: Sequence[str], wanted: Draw | Path | None
) -> dict[str, int]:
    """Real path -> label: those of a table or of class folders, or those that images come with."""
    if not isinstance(wanted, Path):
        labels = [] if images.labels is None else images.labels.tolist()
        return dict(zip(paths, labels, strict=False))
    few = read_few(wanted, images.class_names)
    beside = wanted.parent if wanted.is_file() else Path()
    return {os.path.realpath(beside / path): label for path, label in few.items()}


def _drawn(labels: np.ndarray | None, count: int, wanted: Draw | Path | None) -> np.ndarray:
    if not isinstance(wanted, Draw):
        return np.full(count, -1, np.int64)
    if labels is None:
        raise ValueError("the images have no labels to draw from: name a .csv of path and label")
    if wanted.per_class is None:
        return np.asarray(labels, np.int64)
    return few_per_class(np.asarray(labels), wanted.per_class, seed=wanted.seed)


def _by_key(keys: Sequence[str], few: Mapping[str, int], table: Path) -> np.ndarray:
    """Labels by row, of paths that are keys as they stand."""
    rows = {key: row for row, key in enumerate(keys)}
    strangers = [path for path in few if path not in rows]
    if strangers:
        raise ValueError(f"{table}: not among the keys of the features: {some(strangers)}")
    labels = np.full(len(keys), -1, np.int64)
    for path, label in few.items():
        labels[rows[path]] = label
    return labels


def class_names_of(features: FeatureSet) -> Sequence[str]:
    """The names of the classes, or their numbers where they have none."""
    return features.class_names or [str(index) for index in range(features.n_classes)]
