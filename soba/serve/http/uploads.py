"""What a request brings: images as form fields, as its body or in JSON, or ready features.

Never a URL: a server that fetches what strangers name can be sent anywhere.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from fastapi import Request
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from soba.encode.pictures import BytesPicture
from soba.serve.options import Options

_FORM, _JSON, _FEATURES = "multipart/form-data", "application/json", "application/x-npy"
_ID_LENGTH = 200


class Upload(NamedTuple):
    """The images, or features, of one request."""

    pictures: Sequence[BytesPicture]
    features: np.ndarray | None = None
    ids: list[str] | None = None
    labels: list[str] | None = None

    @property
    def size(self) -> int:
        """In images."""
        return len(self.pictures) if self.features is None else len(self.features)


class _BoundedPicture(BytesPicture):
    """An image whose size is looked at before its pixels are."""

    __slots__ = ("_most",)

    def __init__(self, name: str, content: bytes, most: int) -> None:
        super().__init__(name, content)
        self._most = most

    def open(self) -> Image.Image:
        with Image.open(io.BytesIO(self._content)) as image:
            width, height = image.size
        if width * height > self._most:
            raise ValueError(f"{width} x {height} pixels are over the limit of {self._most}")
        return super().open()


async def read_upload(
    request: Request,
    options: Options,
    *,
    query_ids: list[str] | None = None,
    labelled: bool = False,
) -> Upload:
    """The images of a request, with ids, or with labels where these are asked for.

    `query_ids` are those of a body that has no room for any.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _FORM:
        upload = await _of_form(request, options, labelled)
    elif kind == _JSON:
        upload = _of_json(await request.body(), options, labelled)
    elif kind.startswith("image/") and not labelled:
        picture = _BoundedPicture("image", await request.body(), options.max_pixels)
        upload = Upload([picture], ids=query_ids)
    elif kind == _FEATURES and options.accept_features and not labelled:
        upload = Upload([], _rows(await request.body()), query_ids)
    else:
        raise HTTPException(415, f"send {_FORM}, image/* or {_JSON}, not {kind or 'nothing'!r}")
    _check(upload, options)
    return upload


def picture_of(name: str, data: str, options: Options) -> BytesPicture:
    """The image of base64, or of a data URI of such."""
    return _BoundedPicture(name, _decoded(data), options.max_pixels)


def _check(upload: Upload, options: Options) -> None:
    if not upload.size:
        raise ValueError("the request holds no image")
    if upload.size > options.max_images:
        raise HTTPException(
            413, f"{upload.size} images are over the limit of {options.max_images} in a request"
        )
    if upload.ids is not None:
        if len(upload.ids) != upload.size:
            raise ValueError(f"{len(upload.ids)} ids for {upload.size} images")
        if not all(0 < len(each) <= _ID_LENGTH for each in upload.ids):
            raise ValueError(f"an id has 1 to {_ID_LENGTH} characters")


async def _of_form(request: Request, options: Options, labelled: bool) -> Upload:
    # A form has at most an image, an id and a label for each.
    async with request.form(
        max_files=options.max_images, max_fields=options.max_images, max_part_size=1 << 16
    ) as form:
        unknown = sorted({key for key, _ in form.multi_items()} - {"image", "id", "label"})
        if unknown:
            raise ValueError(f"a form has the fields image, id and label, not {unknown[0]!r}")
        pictures = []
        for number, file in enumerate(form.getlist("image")):
            if not isinstance(file, UploadFile):
                raise ValueError("the form's image is no file")
            name = file.filename or f"image {number}"
            pictures.append(_BoundedPicture(name, await file.read(), options.max_pixels))
        ids, labels = (_texts(form.getlist(name)) for name in ("id", "label"))
    if labelled:
        return Upload(pictures, labels=_labels(labels, len(pictures)))
    return Upload(pictures, ids=ids or None)


def _texts(values: list[Any]) -> list[str]:
    if not all(isinstance(value, str) for value in values):
        raise ValueError("ids and labels are texts, not files")
    return values


def _labels(labels: list[str], images: int) -> list[str]:
    if len(labels) != images:
        raise ValueError(f"{len(labels)} labels for {images} images")
    return labels


def _of_json(body: bytes, options: Options, labelled: bool) -> Upload:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is no JSON: {error}") from error
    images = content.get("images") if isinstance(content, dict) else None
    wanted = {"data", "label"} if labelled else {"data", "id"}
    if not isinstance(images, list) or set(content) != {"images"}:
        raise ValueError('the body is {"images": [...]}')
    for image in images:
        if not isinstance(image, dict) or not {"data"} <= set(image) <= wanted:
            raise ValueError(f"an image is an object with {' and '.join(sorted(wanted))}")
        if not all(isinstance(value, str) for value in image.values()):
            raise ValueError("data, id and label of an image are texts")
    pictures = [
        picture_of(f"image {number}", image["data"], options) for number, image in enumerate(images)
    ]
    if labelled:
        labels = [image["label"] for image in images if "label" in image]
        return Upload(pictures, labels=_labels(labels, len(pictures)))
    ids = [image["id"] for image in images if "id" in image]
    return Upload(pictures, ids=ids or None)


def _decoded(data: str) -> bytes:
    """The bytes of base64, or of a data URI of such."""
    if data.startswith("data:"):
        head, _, data = data.partition(",")
        if not head.endswith(";base64"):
            raise ValueError("a data URI of an image is in base64")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("the data of an image is no base64") from error


def _rows(body: bytes) -> np.ndarray:
    try:
        rows: np.ndarray = np.load(io.BytesIO(body), allow_pickle=False)
    except Exception as error:  # numpy's reader raises many kinds
        raise ValueError(f"no .npy array: {error}") from error
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or not len(rows):
        raise ValueError("features are an array (n, d) of one row at least")
    return rows
