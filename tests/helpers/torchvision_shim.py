"""Lets torchvision's wheel be imported beside a torch it was not built against."""

from __future__ import annotations

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_library = None


def install() -> None:
    """Declare the operators torchvision looks up at import; they are never called.

    Call before torchvision or open_clip is imported, as often as you like.
    """
    global _library
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or _library is not None:
            raise
        _library = torch.library.Library("torchvision", "DEF")
        for schema in _SCHEMAS:
            _library.define(schema)
