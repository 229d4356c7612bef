"""torch, or a word on how to get it."""

from __future__ import annotations

try:
    import torch
    import torch.utils.checkpoint
except ImportError as error:
    raise ImportError("needs torch and open_clip: pip install 'soba-tta[torch]'") from error

__all__ = ["torch"]
