"""torch, once it is used, or a word on how to get it; and gradients, wherever they are asked for.

The modules of the methods import without torch, so that their cards can be read where there is
none, and are read at once where there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["gradients", "plain", "torch"]


class _Torch:
    """Stands for the module, which is imported when the first of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # who looks at an object, such as doctest, needs no torch
        try:
            import torch
            import torch.utils.checkpoint
        except ImportError as error:
            raise ImportError("needs torch and open_clip: pip install 'soba-tta[torch]'") from error
        return getattr(torch, name)


torch: Any = _Torch()


@contextmanager
def gradients() -> Iterator[None]:
    """Gradients are kept inside, though the caller has `no_grad` or `inference_mode` on.

    What is to be part of them has to be made inside, or be `plain`.
    """
    with torch.inference_mode(False), torch.enable_grad():
        yield


def plain(tensor: Any) -> Any:
    """The tensor, or a copy that gradients may use if it was made in inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor
