"""Hugging Face datasets: an image column in, columns with answers out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from soba.answers import Answer
from soba.classifier import Classifier
from soba.encode._imports import no_package

if TYPE_CHECKING:  # it needs Pillow
    from soba.encode.pictures import Picture


def add_answers(
    dataset: Any,
    classifier: Classifier,
    *,
    image: str = "image",
    prefix: str = "soba_",
    learn: bool = True,
    batch: int = 64,
) -> Any:
    """The data set with what a classifier says about its images, in four more columns.

    Parameters
    ----------
    dataset
        A `datasets.Dataset`; or an `IterableDataset`, whose images are answered, and learned from,
        as it is iterated, each time anew.
    classifier
        It sees the rows in their order.
    image
        The column with the images: of datasets' type `Image`, paths, bytes, or PIL images.
    prefix
        Before the names of the columns: `label`, `probability`, `zero_shot` and `error`.
    learn, batch
        As in `soba.Classifier.classify`.

    Notes
    -----
    A row whose image cannot be read has an error, and None elsewhere.
    """
    try:
        import datasets
    except ImportError as error:
        raise no_package("datasets", error, "bridges") from error

    streamed = isinstance(dataset, datasets.IterableDataset)
    if not streamed and not isinstance(dataset, datasets.Dataset):
        raise TypeError(f"one split of a data set is needed, not {type(dataset).__name__}")
    known = dataset.column_names
    if known is not None and image not in known:
        raise ValueError(f"no column {image!r}: there are {', '.join(known)}")
    added = {
        f"{prefix}{name}": datasets.Value("float64" if name == "probability" else "string")
        for name in _columns([])
    }
    for name in added:
        if name in (known or ()):
            raise ValueError(f"there is a column {name!r} already: give another prefix")
    encoded, features = dataset, dataset.features  # None for streams that do not say
    if features is not None and isinstance(features[image], datasets.Image):
        # Files as they are: a broken one is an answer, and not the end of the whole set.
        encoded = dataset.cast_column(image, datasets.Image(decode=False))

    def answers(cells: Iterable[Any]) -> dict[str, list[Any]]:
        given = classifier.classify(_pictures(cells), learn=learn, batch=batch, top=1)
        return dict(zip(added, _columns(given).values(), strict=True))

    if streamed:
        stream = encoded.map(lambda rows: answers(rows[image]), batched=True, batch_size=batch)
        return stream if features is None else stream.cast(datasets.Features(features | added))
    for name, values in answers(row[image] for row in encoded).items():
        dataset = dataset.add_column(name, values, feature=added[name])
    return dataset


def _columns(answers: Iterable[Answer]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"label": [], "probability": [], "zero_shot": [], "error": []}
    for answer in answers:
        read = not answer.error
        columns["label"].append(answer.label if read else None)
        columns["probability"].append(answer.probability if read else None)
        columns["zero_shot"].append(answer.zero_shot if read else None)
        columns["error"].append(answer.error or None)
    return columns


def _pictures(cells: Iterable[Any]) -> Iterator[Picture]:
    """One picture for each cell of a column, whatever is in it."""
    from soba.encode.pictures import BytesPicture, FilePicture, MemoryPicture, NoPicture

    for place, cell in enumerate(cells):
        name = f"row {place}"
        if isinstance(cell, dict):  # an image that is not decoded: its content, or where it lies
            cell = cell.get("bytes") or cell.get("path")
        if cell is None:
            yield NoPicture(name, "no image in this row")
        elif isinstance(cell, str):
            yield FilePicture(cell)
        elif isinstance(cell, bytes):
            yield BytesPicture(name, cell)
        else:
            yield MemoryPicture(name, cell)
