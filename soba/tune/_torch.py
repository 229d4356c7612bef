"""torch, or a word on how to get it; and gradients, wherever they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import torch
    import torch.utils.checkpoint
except ImportError as error:
    raise ImportError("needs torch and open_clip: pip install 'soba-tta[torch]'") from error

__all__ = ["gradients", "plain", "torch"]


@contextmanager
def gradients() -> Iterator[None]:
    """Gradients are kept inside, though the caller has `no_grad` or `inference_mode` on.

    What is to be part of them has to be made inside, or be :func:`plain`.
    """
    with torch.inference_mode(False), torch.enable_grad():
        yield


def plain(tensor: Any) -> Any:
    """The tensor, or a copy that gradients may use if it was made in inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor
