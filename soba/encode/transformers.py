"""CLIP, SigLIP and SigLIP 2 of Hugging Face's transformers: by name, from a folder, or at hand.

Three traps are closed here. transformers makes up weights that a file does not have, with no more
than a warning; here they are an error. It reads a text's feature at the first token when a
tokenizer gives no end token; here that is an error, too. And its image processors need torchvision,
or do other roundings without; ours needs none, and has the settings of the folder.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from soba.encode._hf_folder import CLASSES, CLIP, NAFLEX, HfFolder, check_name, read_folder
from soba.encode._imports import no_transformers
from soba.encode.encoder import check_pixels, check_texts
from soba.encode.preprocess import Preprocess

try:
    import torch
    import transformers

    from soba.encode._hf_text_tower import HfTextTower
    from soba.encode._torch_encoder import TorchEncoder, check_precision, find_device

    _MODELS = {kind: getattr(transformers, name) for kind, name in CLASSES.items()}
except (ImportError, RuntimeError) as error:  # a torchvision of another torch: RuntimeError
    raise no_transformers(error) from error

_SIGLIP_LENGTH = 64  # tokens that all SigLIPs were trained with; they read the last one
_FILES = ("*.json", "*.txt", "*.model")
_WEIGHTS, _OLD_WEIGHTS = "model*.safetensors", "pytorch_model*.bin"
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# Of the settings that no weight shows: those that change features.
_SHAPE = ("hidden_act", "num_attention_heads", "layer_norm_eps", "patch_size", "eos_token_id")


class TransformersEncoder(TorchEncoder):
    """A CLIPModel, SiglipModel or Siglip2Model with its tokenizer; `load` makes one by name.

    Parameters
    ----------
    model
        Used as it is, on its device: put in evaluation mode and frozen.
    tokenizer
        The model's own, of transformers.
    preprocess
        As the model was trained.
    name, precision, batch_size
        As those of `soba.encode.openclip.OpenClip`.

    Notes
    -----
    Gradients pass through CLIP's text tower. SigLIP's has none to offer: it reads a text at its
    last place, where the context of a prompt cannot be cut or shared.

    Where its files can be had::

        encoder = TransformersEncoder.load("openai/clip-vit-base-patch16")
        text = encoder.encode_texts(["a photo of a dog."])  # (1, 512)
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        preprocess: Preprocess,
        *,
        name: str = "transformers",
        precision: str = "fp32",
        batch_size: int = 64,
    ) -> None:
        super().__init__(model, name, precision, batch_size)
        self.kind = str(model.config.model_type)
        if self.kind not in CLASSES:
            raise ValueError(f"{name}: a model of type {self.kind!r}, not {', '.join(CLASSES)}")
        self.tokenizer = tokenizer
        self._reading = threading.Lock()  # a tokenizer keeps its padding from call to call
        self.preprocess = preprocess
        self._text = model.config.text_config
        places = int(self._text.max_position_embeddings)
        self._length = places if self.kind == CLIP else min(places, _SIGLIP_LENGTH)
        self._check_vocabulary()
        if self.kind == CLIP:
            self.text_tower = HfTextTower(model, precision)
            self._check_ends(self.text_tower)

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str],
        *,
        device: str = "auto",
        precision: str = "fp32",
        threads: int | None = None,
        batch_size: int = 64,
    ) -> Self:
        """A model by its name on the Hugging Face hub, or from a folder.

        Parameters
        ----------
        name
            A folder, which is read without a look at the network, or "organisation/model", whose
            files are downloaded once.
        device
            "auto" is the first of cuda, mps and cpu that is there.
        threads
            For torch, in the whole process.
        """
        check_precision(precision)
        if threads is not None:
            torch.set_num_threads(threads)
        folder = read_folder(_local(os.fspath(name)))
        model = _weights(folder).to(find_device(device), _DTYPES.get(precision, torch.float32))
        return cls(
            model,
            _tokenizer(folder),
            folder.preprocess,
            name=os.fspath(name),
            precision=precision,
            batch_size=batch_size,
        )

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        """sha256 of kind, preprocessing, precision, what no weight shows, and every weight."""
        config = self.model.config
        parts = {"text": config.text_config, "vision": config.vision_config}
        shape = {part: {key: getattr(c, key, None) for key in _SHAPE} for part, c in parts.items()}
        about = {
            "model": self.kind,
            "precision": self.precision,
            "preprocess": self.preprocess.as_dict(),
            "shape": shape,
        }
        return self._digest(about)

    def encode_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """(n, 3, size, size) float32, preprocessed -> (n, width) float32 unit rows."""
        check_pixels(pixels, self.preprocess.size)

        def encode(rows: slice) -> Any:
            batch = self._batch(pixels[rows])
            inputs = self._patches(batch) if self.kind == NAFLEX else {"pixel_values": batch}
            return _pooled(self.model.get_image_features(**inputs))

        return self._in_batches(len(pixels), encode)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Whole sentences -> (m, width) float32 unit rows."""
        sentences = check_texts(texts)
        padding = "longest" if self.kind == CLIP else "max_length"

        def encode(rows: slice) -> Any:
            return _pooled(self.model.get_text_features(**self._read(sentences[rows], padding)))

        return self._in_batches(len(sentences), encode)

    def tokens(self, texts: Sequence[str]) -> Any:
        """(m, context length) int64 tokens, where the model lies."""
        return self._read(list(texts), "max_length")["input_ids"]

    def _read(self, sentences: list[str], padding: str) -> dict[str, Any]:
        """What the text tower takes: tokens, and which of them count where the tokenizer says."""
        with self._reading:
            read = self.tokenizer(
                sentences,
                padding=padding,
                truncation=True,
                max_length=self._length,
                return_tensors="pt",
            )
        names = [name for name in ("input_ids", "attention_mask") if name in read]
        return {name: read[name].to(self.device) for name in names}

    def _patches(self, pixels: Any) -> dict[str, Any]:
        """(n, 3, size, size) -> rows of patches, which the models of any shape take."""
        patch = int(self.model.config.vision_config.patch_size)
        side = pixels.shape[-1] // patch
        cut = pixels.unflatten(3, (side, patch)).unflatten(2, (side, patch))  # (n, 3, r, p, c, p)
        rows = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (n, r * c, p * p * 3)
        shape = torch.full((len(rows), 2), side, device=rows.device)
        seen = torch.ones(rows.shape[:2], dtype=torch.int32, device=rows.device)
        return {"pixel_values": rows, "pixel_attention_mask": seen, "spatial_shapes": shape}

    def _check_vocabulary(self) -> None:
        highest, known = int(self.tokens(["", "a photo."]).max()), int(self._text.vocab_size)
        if highest >= known:
            raise ValueError(
                f"{self.name}: its tokenizer gives token {highest}, and its text tower "
                f"knows {known}"
            )

    def _check_ends(self, tower: HfTextTower) -> None:
        (empty,) = self.tokens([""])
        if int(tower.ends(empty[None])) == 0:
            raise ValueError(
                f"{self.name}: its tokenizer puts no end token behind a text, where its text tower "
                "reads it"
            )


def _local(name: str) -> Path:
    """The folder with a model's files; those of a name on the hub are fetched if need be."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    check_name(name)
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    try:
        folder = Path(snapshot_download(name, allow_patterns=[*_FILES, _WEIGHTS]))
        if not any(folder.glob(_WEIGHTS)):  # models of older days
            snapshot_download(name, allow_patterns=[*_FILES, _OLD_WEIGHTS])
        return folder
    except Exception as error:  # of the hub, of the connection, or of the name itself
        with contextlib.suppress(ValueError):  # names that the hub cannot have
            config = try_to_load_from_cache(name, "config.json")
            # transformers leaves fewer files behind than are asked for above, and all it needs.
            if isinstance(config, str):
                return Path(config).parent
        raise OSError(
            f"the files of hf:{name} are not to be had here ({_line(error)}): download them "
            "elsewhere and give the folder as hf:FOLDER"
        ) from error


def _weights(folder: HfFolder) -> Any:
    """The model with its weights, on the CPU."""
    try:
        with _quiet():
            model, report = _MODELS[folder.kind].from_pretrained(
                folder.path,
                dtype=torch.float32,
                attn_implementation="sdpa",
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # whatever a damaged or foreign file makes the readers raise
        raise ValueError(
            f"{folder.path}: not weights of {CLASSES[folder.kind]}: {_line(error)}"
        ) from error
    missing = [*report["missing_keys"], *report["mismatched_keys"]]
    if missing:
        listed = ", ".join(sorted(str(key) for key in missing)[:3])
        raise ValueError(
            f"{folder.path}: {len(missing)} weights of {CLASSES[folder.kind]} are missing or of "
            f"another shape ({listed}{', ...' if len(missing) > 3 else ''})"
        )
    return model


def _tokenizer(folder: HfFolder) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(folder.path, local_files_only=True)
    except Exception as error:  # sentencepiece may be missing, or any of several files
        raise ValueError(f"{folder.path}: its tokenizer cannot be read: {_line(error)}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bar and its table of weights, which is read and checked."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _pooled(output: Any) -> Any:
    """The features, which some versions of transformers give in a box."""
    return getattr(output, "pooler_output", output)


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip()[:200] if lines else type(error).__name__
