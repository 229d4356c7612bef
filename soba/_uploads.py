"""What a client sends to a server: images or features, a few at a time; and what it gets back."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from soba._files import parse_json
from soba.answers import ServedAnswer

_BYTES = 8 << 20  # of one request, unless an image alone is larger


class Options(TypedDict, total=False):
    """How samples are answered."""

    ids: Iterable[str | int]  # what the client calls them; by default their content names them
    learn: bool
    top: int
    min_confidence: float
    batch: int


class _Image(NamedTuple):
    name: str
    content: bytes = b""
    problem: str = ""
    called: str | None = None

    def part(self) -> tuple[str, tuple[str, bytes, str]]:
        # Where the file lies is nobody's business; of its name, what can be said in UTF-8.
        file = Path(self.name).name.encode("utf-8", "replace").decode()
        return "image", (file, self.content, "application/octet-stream")


class Upload(NamedTuple):
    """A request's arguments for httpx, if there is one, and the samples that it is about."""

    request: dict[str, Any]
    places: list[str | ServedAnswer]  # what each is called, or that it could not be read

    def answers(self, said: Mapping[str, Any]) -> Iterator[ServedAnswer]:
        """The server's answers in the order of the samples, beside those that were not sent."""
        answers = iter(said.get("answers", ()))
        for place in self.places:
            if isinstance(place, ServedAnswer):
                yield place
            else:
                yield ServedAnswer.of(next(answers), said, image=place)


def uploads(images: Any, features: Any, **options: Unpack[Options]) -> Iterator[Upload]:
    """Images, or else features, a few at a time; what is not asked for is not read."""
    batch, ids = options.pop("batch", 16), options.pop("ids", None)
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"{', '.join(sorted(unknown))}: no such option")
    if (images is None) == (features is None):
        raise ValueError("give either images or features")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    names = None if ids is None else map(str, ids)
    if features is not None:
        return _feature_uploads(np.asarray(features), names, batch, options)
    return _image_uploads(images, names, batch, options)


def guard_upload(images: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a request that brings labelled images, by class."""
    files, labels = [], []
    for label, some in images.items():
        for image in _contents(some):
            if image.problem:
                raise ValueError(f"{image.name}: {image.problem}")
            files.append(image.part())
            labels.append(label)
    return {"files": files, "data": {"label": labels}}


def feedback(answer: ServedAnswer | str) -> dict[str, str]:
    """What feedback says of an answer, so that a server that has forgotten it can count it."""
    if isinstance(answer, str):
        return {"id": answer}
    return {"id": answer.name, "answered": answer.label, "zero_shot": answer.zero_shot}


def parsed(kind: str, content: bytes) -> dict[str, Any]:
    """What a server's JSON says; nothing where it says nothing, or something else than JSON."""
    said = parse_json(content) if content and "json" in kind else {}
    return said if isinstance(said, dict) else {}


def _image_uploads(
    images: Any, names: Iterator[str] | None, batch: int, options: Options
) -> Iterator[Upload]:
    part: list[_Image] = []
    for image in _contents(images):
        size = len(image.content) + sum(len(other.content) for other in part)
        if part and (len(part) == batch or size > _BYTES):
            yield _image_upload(part, options)
            part = []
        part.append(image if names is None else image._replace(called=_next(names, image.name)))
    if part:
        yield _image_upload(part, options)


def _image_upload(part: list[_Image], options: Options) -> Upload:
    places = [
        ServedAnswer(image.name, error=image.problem, name=image.called or "")
        if image.problem
        else image.name
        for image in part
    ]
    good = [image for image in part if not image.problem]
    if not good:
        return Upload({}, places)
    called = [image.called for image in good if image.called is not None]
    content = {"files": [image.part() for image in good], "data": {"id": called}}
    return Upload(content | {"params": options}, places)


def _feature_uploads(
    rows: np.ndarray, names: Iterator[str] | None, batch: int, options: Options
) -> Iterator[Upload]:
    for start in range(0, len(rows), batch):
        some, file = rows[start : start + batch], io.BytesIO()
        np.save(file, some, allow_pickle=False)
        content = {"content": file.getvalue(), "headers": {"Content-Type": "application/x-npy"}}
        places = [f"row {start + k}" for k in range(len(some))]
        called = {} if names is None else {"id": [_next(names, place) for place in places]}
        yield Upload(content | {"params": {**options, **called}}, list(places))


def _contents(images: Any) -> Iterator[_Image]:
    from soba.encode.image_files import why_not_read  # needs Pillow, as features do not
    from soba.encode.images import list_images

    for picture in list_images(images):
        try:
            yield _Image(picture.name, picture.content())
        except Exception as error:
            yield _Image(picture.name, problem=why_not_read(error))


def _next(names: Iterator[str], place: str) -> str:
    for name in islice(names, 1):
        return name
    raise ValueError(f"{place} has no id")
