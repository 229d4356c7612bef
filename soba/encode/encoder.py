"""What every encoder is, and how one is opened by name.

An encoder says what it can do; nobody asks what class it is of. The ones that soba opens are in
`_KINDS`, each with the names it answers to and what it needs; none of these is imported before
its name is asked for.
"""

from __future__ import annotations

import difflib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from soba.encode._imports import no_package

if TYPE_CHECKING:
    from soba.encode._hf_text_tower import HfTextTower
    from soba.encode._text_tower import TextTower
    from soba.encode.preprocess import Preprocess

TINY = "tiny"
HF = "hf:"  # a name on the Hugging Face hub, or a folder of transformers

Tokenizer = Callable[[Sequence[str]], Any]  # texts -> (m, context_length) token ids


class Encoder(ABC):
    """A CLIP: pixels and words -> unit features of one space, and what turns cosines into logits.

    Attributes
    ----------
    name
        For records and messages.
    preprocess
        PIL image -> (3, size, size) float32, as the model was trained.
    width
        Of the joint feature space.
    logit_scale
        exp of CLIP's learned temperature; 100 for OpenAI's models.
    logit_bias
        What SigLIP adds to its logits; zero for CLIP. No softmax over classes depends on it.
    sigmoid
        Whether it was trained to score each pair of image and text by itself, as SigLIP was: the
        sigmoid of a logit is then a score. Adapters weigh classes against each other all the same.
    fingerprint
        Of weights and preprocessing: features with different ones do not mix.
    device, precision
        Where it computes ("cpu", "cuda:0") and in what ("fp32", "autocast", "fp16", "bf16").
    batches_at_once
        How many threads may call `encode_pixels` at the same time, and gain by it.
    text_tower
        What gradients pass through on their way to prompts; None where they cannot. Methods that
        tune prompts ask for it, and for `tokens`.
    opened_as
        The name and precision that `load_encoder` opened it under, so that it can be found
        again; None for one that was built by hand.

    Notes
    -----
    `soba.testing.check_encoder` checks all of this on an encoder of yours.
    """

    name: str
    preprocess: Preprocess
    width: int
    logit_scale: float
    logit_bias: float = 0.0
    sigmoid: bool = False
    fingerprint: str
    device: str = "cpu"
    precision: str = "fp32"
    batches_at_once: int = 1
    text_tower: TextTower | HfTextTower | None = None
    opened_as: dict[str, str] | None = None

    @abstractmethod
    def encode_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(n, 3, size, size) float32, preprocessed -> (n, width) float32 unit rows."""

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Whole sentences -> (m, width) float32 unit rows."""

    def tokens(self, texts: Sequence[str]) -> Any:
        """(m, context length) token ids as the text tower reads them; None if it does not tell.

        Texts of the same tokens are the same to the encoder, and no image can be told apart by
        them: `soba.encode.prompts.classifier` refuses such class names.
        """
        return None


def check_pixels(pixels: np.ndarray, size: int) -> None:
    """Raise unless these are preprocessed images, for encoders to call first."""
    if pixels.ndim != 4 or pixels.shape[1:] != (3, size, size):
        raise ValueError(f"pixels must have shape (n, 3, {size}, {size}), not {pixels.shape}")
    if pixels.dtype.kind != "f":
        raise TypeError(f"pixels must be preprocessed floats, not {pixels.dtype}")


def check_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list; raises unless they are texts."""
    if isinstance(texts, str):
        raise TypeError("texts must be a list of sentences, not one string")
    sentences = list(texts)
    for text in sentences:
        if not isinstance(text, str):
            raise TypeError(f"texts must be sentences, not {text!r}")
    return sentences


def load_encoder(
    model: str | os.PathLike[str] = TINY,
    pretrained: str | None = None,
    *,
    device: str = "auto",
    precision: str = "fp32",
    threads: int | None = None,
    gradients: bool = False,
) -> Encoder:
    """An encoder by name.

    Parameters
    ----------
    model
        "tiny", soba's own, which knows icons only; "ViT-B-16/openai" or any other model of
        open_clip with one of its tags or a file of weights; "hf:openai/clip-vit-base-patch16" or
        "hf:FOLDER", a CLIP, SigLIP or SigLIP 2 of transformers; a folder with an ONNX model; a
        "file.onnx" with an image tower.
    pretrained
        Tag or file, for a model of open_clip whose name says neither.
    device, precision
        Of models that run in torch. "auto" is the first of cuda, mps and cpu that is there.
    threads
        All cores by default.
    gradients
        Ask for one whose `text_tower` passes gradients, as prompt tuning needs: "tiny" then runs
        in torch. Raises where there is none.

    Examples
    --------
    >>> load_encoder().name
    'tiny'
    """
    model = os.fspath(model)
    if not model:
        raise ValueError("no encoder: its name is empty")
    asked = _Asked(model, pretrained, device, precision, threads, gradients)
    encoder = _kind_of(model).open(asked)
    if gradients and encoder.text_tower is None:
        raise ValueError(
            f"{model}: no gradients pass through its text tower; name a model of open_clip whose "
            "text tower is open_clip's own, or a CLIP of transformers"
        )
    if not (gradients and model == TINY):  # by its name it would come back without gradients
        encoder.opened_as = {"name": full_name(model, pretrained), "precision": precision}
    return encoder


def split_name(name: str, pretrained: str | None = None) -> tuple[str, str | None]:
    """A model of open_clip and its weights, from a name that may say both.

    Examples
    --------
    >>> split_name("ViT-B-16/openai"), split_name("RN50", "weights.pt"), split_name("tiny")
    (('ViT-B-16', 'openai'), ('RN50', 'weights.pt'), ('tiny', None))
    """
    model, slash, weights = name.partition("/")
    is_path = not model or model.startswith((".", "~"))
    brings_weights = ":" in model  # open_clip's "hf-hub:..." and "local-dir:..."
    if not slash or is_path or brings_weights or _kind_of(name) is not _OPEN_CLIP:
        return name, pretrained
    if pretrained is not None:
        raise ValueError(f"{name}: says its weights already, and so does {pretrained}")
    return model, weights


def full_name(name: str, pretrained: str | None = None) -> str:
    """What opens the same encoder from every folder: one word, and whole paths.

    Examples
    --------
    >>> full_name("ViT-B-16", "openai"), full_name("tiny")
    ('ViT-B-16/openai', 'tiny')
    """
    if is_local(name):
        return os.path.abspath(name)
    folder = Path(name.removeprefix(HF)).expanduser()
    if name.startswith(HF) and folder.is_dir():
        return f"{HF}{os.path.abspath(folder)}"
    model, weights = split_name(name, pretrained)
    if weights is None:
        return model
    return f"{model}/{os.path.abspath(weights) if os.path.isfile(weights) else weights}"


def is_local(name: str) -> bool:
    """Whether a name is that of an ONNX model on disk.

    Examples
    --------
    >>> is_local("models/mine.onnx"), is_local("ViT-B-16/openai")
    (True, False)
    """
    return _kind_of(name).open is _onnx


@dataclass(frozen=True)
class _Asked:
    name: str
    pretrained: str | None
    device: str
    precision: str
    threads: int | None
    gradients: bool


@dataclass(frozen=True)
class _Kind:
    """Encoders that are opened in one way."""

    form: str  # of their names
    needs: str  # the extra to install
    answers: Callable[[str], bool]
    open: Callable[[_Asked], Encoder]


def _tiny(asked: _Asked) -> Encoder:
    _refuse_weights(asked)
    if asked.gradients:
        from soba.encode.openclip import OpenClip

        return OpenClip.tiny(device=asked.device, threads=asked.threads)
    from soba.encode.onnx import OnnxEncoder

    return OnnxEncoder.tiny(threads=asked.threads)


def _onnx(asked: _Asked) -> Encoder:
    _refuse_weights(asked)
    if asked.gradients:
        raise ValueError(
            f"{asked.name}: an ONNX model passes no gradients; name an open_clip model"
        )
    from soba.encode.onnx import OnnxEncoder

    return OnnxEncoder.load(asked.name, threads=asked.threads)


def _transformers(asked: _Asked) -> Encoder:
    _refuse_weights(asked)
    name = asked.name.removeprefix(HF)
    try:
        from soba.encode._hf_folder import check_name
    except ImportError as error:
        raise no_package("Pillow", error, "hf") from error

    check_name(name)  # what is wrong with it is said before torch is asked for
    from soba.encode.transformers import TransformersEncoder

    return TransformersEncoder.load(
        name,
        device=asked.device,
        precision=asked.precision,
        threads=asked.threads,
    )


def _open_clip(asked: _Asked) -> Encoder:
    if asked.pretrained is None and difflib.get_close_matches(
        asked.name.lower(), [TINY], cutoff=0.75
    ):
        raise ValueError(f"no encoder {asked.name!r}: did you mean {TINY}?")  # it needs no torch
    if asked.name.startswith((".", "/", "~")):  # said before torch is asked for
        raise ValueError(f"no encoder {asked.name!r}: no such file or folder")
    from soba.encode.openclip import OpenClip, UnknownModel

    model, weights = split_name(asked.name, asked.pretrained)
    try:
        return OpenClip.load(
            model,
            weights,
            device=asked.device,
            precision=asked.precision,
            threads=asked.threads,
        )
    except UnknownModel as error:
        forms = ", ".join(f"{kind.form} [{kind.needs}]" for kind in _KINDS)
        raise ValueError(
            f"no encoder {asked.name!r}: no such file or folder, and {error} Encoders and the "
            f"extras they need: {forms}"
        ) from error


def _refuse_weights(asked: _Asked) -> None:
    if asked.pretrained is not None:
        raise ValueError(f"{asked.name}: carries its own weights, --pretrained has no place here")


def _kind_of(name: str) -> _Kind:
    return next(kind for kind in _KINDS if kind.answers(name))


_OPEN_CLIP = _Kind("MODEL/PRETRAINED", "torch", lambda name: True, _open_clip)
_KINDS = (  # the first that answers to a name opens it
    _Kind(TINY, "cli", lambda name: name == TINY, _tiny),
    _Kind("hf:ORGANISATION/MODEL", "hf", lambda name: name.startswith(HF), _transformers),
    _Kind("FILE.onnx", "cli", lambda name: Path(name).suffix == ".onnx", _onnx),
    _Kind("FOLDER", "cli", lambda name: Path(name).is_dir(), _onnx),
    _OPEN_CLIP,
)
