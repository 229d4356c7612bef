"""What encoders that run in torch share: device, precision, batches, a digest of all weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from soba.encode.encoder import Encoder

PRECISIONS = ("fp32", "autocast", "fp16", "bf16")
_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class TorchEncoder(Encoder):
    """A frozen model, used as it is on its device.

    Parameters
    ----------
    model
        One with a `logit_scale`, and a `logit_bias` where it has one. It is put in evaluation mode
        and frozen, since nothing here ever trains it.
    precision
        "fp32"; "autocast": products in half precision (bfloat16 on a CPU, float16 elsewhere) with
        float32 weights; or what the model was converted to, "fp16" or "bf16".
    batch_size
        Images or texts at a time.
    """

    def __init__(self, model: Any, name: str, precision: str, batch_size: int) -> None:
        check_precision(precision)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.model = model.eval().requires_grad_(False)
        self.name = name
        self.precision = precision
        self.batch_size = batch_size
        self.logit_scale = float(model.logit_scale.exp())
        bias = getattr(model, "logit_bias", None)
        self.logit_bias = 0.0 if bias is None else float(bias)
        self.sigmoid = bias is not None

    @property
    def device(self) -> str:  # type: ignore[override]
        """Where the model's weights lie."""
        return str(self.model.logit_scale.device)

    @cached_property
    def width(self) -> int:  # type: ignore[override]
        """Of the joint feature space."""
        return int(self.encode_texts(["width"]).shape[1])

    def _digest(self, about: dict[str, Any]) -> str:
        """sha256 of what is said about the model, and of every weight."""
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy())
        return digest.hexdigest()

    def _batch(self, pixels: np.ndarray) -> Any:
        """The pixels where and how the model reads them."""
        rows = torch.from_numpy(np.ascontiguousarray(pixels, np.float32))
        return rows.to(self.device, _HALVES.get(self.precision, torch.float32))

    def _in_batches(self, n: int, encode: Callable[[slice], Any]) -> np.ndarray:
        if n == 0:
            return np.empty((0, self.width), np.float32)
        parts = []
        with torch.inference_mode(), autocast(self.precision, self.device):
            for start in range(0, n, self.batch_size):
                rows = encode(slice(start, start + self.batch_size)).float()
                parts.append(torch.nn.functional.normalize(rows, dim=-1).cpu().numpy())
        return np.concatenate(parts)


def check_precision(precision: str) -> None:
    """Refuse a precision that nobody has heard of."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")


def autocast(precision: str, device: str) -> contextlib.AbstractContextManager[Any]:
    """The context that a model of this precision is to be run in."""
    if precision != "autocast":
        return contextlib.nullcontext()
    kind = torch.device(device).type
    half = torch.bfloat16 if kind == "cpu" else torch.float16
    context: contextlib.AbstractContextManager[Any] = torch.autocast(kind, half)
    return context


def find_device(name: str) -> Any:
    """A device by name; "auto" is the first of cuda, mps and cpu that is there."""
    if name != "auto":
        try:
            return torch.zeros(0, device=name).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"device {name!r} is not to be had: {error}") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
