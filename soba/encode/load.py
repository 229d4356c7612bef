"""An encoder by name: what `--model` and `--pretrained` mean."""

from __future__ import annotations

from pathlib import Path

from soba.encode.encoder import Encoder
from soba.encode.onnx import OnnxEncoder

TINY = "tiny"


def load_tunable(
    model: str = TINY,
    pretrained: str | None = None,
    *,
    device: str = "auto",
    precision: str = "fp32",
    threads: int | None = None,
) -> Encoder:
    """The same model as an open_clip one, whose text tower passes gradients on."""
    from soba.encode.openclip import OpenClip

    if model == TINY:
        return OpenClip.tiny(device=device, threads=threads)
    if Path(model).suffix == ".onnx" or Path(model).is_dir():
        raise ValueError(f"{model}: an ONNX model passes no gradients; name an open_clip model")
    return OpenClip.load(model, pretrained, device=device, precision=precision, threads=threads)


def load_encoder(
    model: str = TINY,
    pretrained: str | None = None,
    *,
    device: str = "auto",
    precision: str = "fp32",
    threads: int | None = None,
) -> Encoder:
    """`tiny`, an ONNX folder or file, or any open_clip model with a tag or a file of weights.

    >>> load_encoder().name
    'tiny'
    """
    path = Path(model)
    if model == TINY or path.suffix == ".onnx" or path.is_dir():
        if pretrained is not None:
            raise ValueError(f"{model}: carries its own weights, --pretrained has no place here")
        if model == TINY:
            return OnnxEncoder.tiny(threads=threads)
        return OnnxEncoder.load(path, threads=threads)
    from soba.encode.openclip import OpenClip

    return OpenClip.load(model, pretrained, device=device, precision=precision, threads=threads)
