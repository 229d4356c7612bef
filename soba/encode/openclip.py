"""Any CLIP that open_clip knows: by name and tag, from a local file, or built by you.

open_clip leaves two traps that this module closes. Weights trained with QuickGELU (OpenAI's among
them) load into a GELU model with no more than a warning; here the tag decides. And a model without
weights is made up at random with no more than a log line; here that has to be asked for.
Preprocessing follows the model's own settings, without torchvision's transforms.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Self

import numpy as np

from soba.encode._imports import no_open_clip
from soba.encode.encoder import check_pixels, check_texts
from soba.encode.preprocess import Preprocess
from soba.encode.tokens import ByteTokenizer

try:
    import open_clip
    import torch

    from soba.encode._text_tower import TextTower
    from soba.encode._torch_encoder import TorchEncoder, check_precision, find_device
except (ImportError, RuntimeError) as error:  # a torchvision of another torch: RuntimeError
    raise no_open_clip(error) from error

_SEE = "see open_clip.list_models()"

Tokenizer = Callable[[list[str]], Any]  # m texts -> (m, context length) integer tokens


class UnknownModel(ValueError):
    """A name that open_clip has no model of."""


class OpenClip(TorchEncoder):
    """An open_clip model with its tokenizer; `load` makes one by name.

    Parameters
    ----------
    model
        An `open_clip.CLIP` or one with the same methods. It is used as it is, on its device:
        put in evaluation mode and frozen, since nothing here ever trains it.
    tokenizer
        Any callable from m texts to (m, context length) integer tokens, start token first, end
        token the highest.
    preprocess
        By default the one the model carries.
    name
        For records and messages.
    precision
        "fp32"; "autocast": products in half precision (bfloat16 on a CPU, float16 elsewhere) with
        float32 weights; or what the model was converted to, "fp16" or "bf16".
    batch_size
        Images or texts at a time.

    Notes
    -----
    Where its weights can be had:

        encoder = OpenClip.load("ViT-B-16", "openai")
        text = encoder.encode_texts(["a photo of a dog."])  # (1, 512)
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        preprocess: Preprocess | None = None,
        *,
        name: str = "open_clip",
        precision: str = "fp32",
        batch_size: int = 64,
    ) -> None:
        super().__init__(model, name, precision, batch_size)
        self.tokenizer = tokenizer
        self.preprocess = _preprocess_of(model) if preprocess is None else preprocess
        with contextlib.suppress(ValueError):  # towers of other makes, which stay None
            self.text_tower = TextTower(model, precision)

    @classmethod
    def load(
        cls,
        model: str = "ViT-B-16",
        pretrained: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
        precision: str = "fp32",
        tokenizer: Tokenizer | None = None,
        threads: int | None = None,
        batch_size: int = 64,
    ) -> Self:
        """A model by name, with weights.

        Parameters
        ----------
        model
            One of `open_clip.list_models()`, or "local-dir:..." / "hf-hub:...", which bring their
            weights along.
        pretrained
            A tag that open_clip knows ("openai"; it downloads the weights once), a local file
            (.safetensors, .pt, OpenAI's own archives), or "random" for a model that knows nothing.
            For a file of weights trained with QuickGELU take the model "...-quickgelu"; tags and
            OpenAI's archives say so themselves.
        device
            "auto" is the first of cuda, mps and cpu that is there.
        tokenizer
            In place of the model's own.
        threads
            For torch, in the whole process.
        """
        check_precision(precision)
        if threads is not None:
            torch.set_num_threads(threads)
        built = _build(model, pretrained, "fp32" if precision == "autocast" else precision)
        return cls(
            built.to(find_device(device)),
            open_clip.get_tokenizer(model) if tokenizer is None else tokenizer,
            name=model if pretrained is None else f"{model}/{Path(pretrained).name}",
            precision=precision,
            batch_size=batch_size,
        )

    @classmethod
    def tiny(cls, *, device: str = "auto", threads: int | None = None) -> Self:
        """soba's own tiny CLIP as an open_clip model, for the methods that need gradients."""
        from safetensors.torch import load_file

        if threads is not None:
            torch.set_num_threads(threads)
        folder = resources.files("soba.tiny")
        config = json.loads((folder / "open_clip_config.json").read_text())
        settings = config["model_cfg"]
        model = open_clip.model.CLIP(
            settings["embed_dim"], settings["vision_cfg"], settings["text_cfg"]
        )
        model.load_state_dict(load_file(str(folder / "open_clip_model.safetensors")))
        preprocess = Preprocess.from_config(
            config["preprocess_cfg"], settings["vision_cfg"]["image_size"]
        )
        tokenizer = ByteTokenizer(settings["text_cfg"]["context_length"])
        return cls(model.to(find_device(device)), tokenizer, preprocess, name="tiny")

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """sha256 of name, preprocessing, precision and every weight."""
        what = {
            "model": re.split("[:/]", self.name)[0],  # where the file lies does not matter
            "precision": self.precision,
            "preprocess": self.preprocess.as_dict(),
        }
        return self._digest(what)

    def encode_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(n, 3, size, size) float32, preprocessed -> (n, width) float32 unit rows."""
        check_pixels(pixels, self.preprocess.size)

        def encode(rows: slice) -> Any:
            return self.model.encode_image(self._batch(pixels[rows]))

        return self._in_batches(len(pixels), encode)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Whole sentences -> (m, width) float32 unit rows."""
        sentences = check_texts(texts)

        def encode(rows: slice) -> Any:
            tokens = self.tokens(sentences[rows])
            if self.text_tower is None:
                return self.model.encode_text(tokens)
            ends = self.text_tower.ends(tokens)
            return self.text_tower.run(self.text_tower.embed(tokens, ends), ends)

        return self._in_batches(len(sentences), encode)

    def tokens(self, texts: Sequence[str]) -> Any:
        """(m, context length) int64 tokens, where the model lies."""
        return torch.as_tensor(self.tokenizer(list(texts))).to(self.device, torch.int64)


def _build(name: str, pretrained: str | os.PathLike[str] | None, precision: str) -> Any:
    """The model with its weights, on the CPU."""
    if name.startswith(("local-dir:", "hf-hub:")):
        if pretrained is not None:
            raise ValueError(f"{name} brings its own weights: leave --pretrained out")
        return open_clip.create_model(name, precision=precision, require_pretrained=True)
    known = open_clip.list_models()
    if name not in known:
        spelled = {model.lower(): model for model in known}
        near = difflib.get_close_matches(name.lower(), spelled, n=3)
        hint = f"did you mean {' or '.join(spelled[n] for n in near)}?" if near else _SEE
        raise UnknownModel(f"open_clip has no model {name!r}: {hint}")
    tags = open_clip.list_pretrained_tags_by_model(name)
    if pretrained is None:
        raise ValueError(
            f"{name} needs weights. Say as --pretrained a tag "
            f"({', '.join(tags) or 'it has none'}), a local file, or `random` if you mean to run "
            "it untrained"
        )
    if pretrained == "random":
        return open_clip.create_model(name, precision=precision, pretrained_text=False)
    settings = open_clip.get_pretrained_cfg(name, str(pretrained))
    if settings:
        quick = bool(settings.get("quick_gelu", False))
        try:
            return open_clip.create_model(
                name, pretrained, precision=precision, force_quick_gelu=quick
            )
        except RuntimeError as error:
            raise OSError(
                f"the weights of {name}, {pretrained!r}, are not to be had here ({error}): "
                "download them elsewhere and give the file as --pretrained"
            ) from error
    if not Path(pretrained).is_file():
        raise ValueError(
            f"{pretrained}: neither a file nor a tag of {name} "
            f"(its tags: {', '.join(tags) or 'none'})"
        )
    return _from_file(name, Path(pretrained), precision)


def _from_file(name: str, path: Path, precision: str) -> Any:
    try:
        if not _is_script(path):
            return open_clip.create_model(name, str(path), precision=precision)
        # OpenAI publishes TorchScript archives, all trained with QuickGELU.
        weights = dict(torch.jit.load(str(path), map_location="cpu").state_dict())
        for setting in ("input_resolution", "context_length", "vocab_size", "attn_mask"):
            weights.pop(setting, None)
        model = open_clip.create_model(
            name, precision=precision, force_quick_gelu=True, pretrained_text=False
        )
        model.load_state_dict(weights)
        return model
    except Exception as error:  # whatever a damaged or foreign file makes the readers raise
        lines = str(error).split("\n") if str(error) else [type(error).__name__]
        reason = " ".join(line.strip() for line in lines[:2])[:300]
        raise ValueError(f"{path}: not weights of {name}: {reason}") from error


def _is_script(path: Path) -> bool:
    """Whether a file is a TorchScript archive: a zip with code in it."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in f"/{name}" for name in archive.namelist())


def _preprocess_of(model: Any) -> Preprocess:
    """The preprocessing that open_clip has attached to a model."""
    settings = getattr(model.visual, "preprocess_cfg", None)
    if not settings:
        raise ValueError("the model does not say how it wants its images: give preprocess=")
    return Preprocess.from_config(settings)
