"""The bodies of requests that are read by hand, as OpenAPI shows them."""

from __future__ import annotations

from typing import Any

_BYTES = {"type": "string", "format": "binary"}
_TEXT = {"type": "string", "minLength": 1, "maxLength": 200}
_DOT = (  # a PNG of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC"
)


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


def _form(label: str, *required: str) -> dict[str, Any]:
    return {
        "schema": {
            "type": "object",
            "properties": {
                "image": {"type": "array", "items": _BYTES, "minItems": 1},
                label: {"type": "array", "items": _TEXT},
            },
            "required": ["image", *required],
            "additionalProperties": False,
        }
    }


def _json(label: str, example: str, *required: str) -> dict[str, Any]:
    image = {
        "type": "object",
        "properties": {
            "data": {"type": "string", "description": "Base64, or a data URI of it."},
            label: _TEXT,
        },
        "required": ["data", *required],
        "additionalProperties": False,
    }
    return {
        "schema": {
            "type": "object",
            "properties": {"images": {"type": "array", "items": image, "minItems": 1}},
            "required": ["images"],
            "additionalProperties": False,
        },
        "example": {"images": [{"data": _DOT, label: example}]},
    }


CLASSIFY_BODY = _body(
    {
        "multipart/form-data": _form("id"),
        "application/json": _json("id", "shot-17"),
        "image/png": {"schema": _BYTES},
        "image/jpeg": {"schema": _BYTES},
        "image/webp": {"schema": _BYTES},
        "application/x-npy": {"schema": _BYTES},
    }
)
GUARD_BODY = _body(
    {
        "multipart/form-data": _form("label", "label"),
        "application/json": _json("label", "cat", "label"),
    }
)
IMPORT_BODY = _body({"application/octet-stream": {"schema": _BYTES}})
