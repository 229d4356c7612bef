"""CLIPs as ONNX files, run by onnxruntime: no torch. The embedded tiny CLIP is one.

A model is a folder: image.onnx; text.onnx where texts are to be encoded here; and
open_clip_config.json, in open_clip's own layout, for image size, mean, std, tokenizer and scale.
A lone image tower works too: its text features are then made elsewhere and given.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from soba._files import parse_json
from soba.encode._imports import no_open_clip
from soba.encode.encoder import Encoder, Tokenizer, check_pixels, check_texts
from soba.encode.preprocess import Preprocess
from soba.encode.tokens import ByteTokenizer

_BATCH = 64  # rows per run: enough to fill the threads, small enough to stay in the cache
_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_WHOLES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
# What onnxruntime's providers run on. Azure's is always listed and runs none of our operators.
_DEVICES = {
    "Tensorrt": "cuda",
    "CUDA": "cuda",
    "ROCM": "rocm",
    "MIGraphX": "rocm",
    "CoreML": "coreml",
    "Dml": "dml",
}


class OnnxEncoder(Encoder):
    """An image tower, and a text tower where there is one.

    Parameters
    ----------
    image_tower
        ONNX file: (n, 3, size, size) normalised pixels -> (n, d).
    text_tower
        ONNX file: (m, length) token ids -> (m, d).
    tokenizer
        Texts -> token ids, for the text tower.
    preprocess
        As the model was trained; by default CLIP's, at the size the image tower asks for.
    logit_scale
        CLIP's.
    threads
        Of onnxruntime; all cores by default.

    Examples
    --------
    >>> clip = OnnxEncoder.tiny()
    >>> clip.encode_texts(["an icon of a bell.", "an icon of a cat."]).shape
    (2, 128)
    """

    def __init__(
        self,
        image_tower: str | os.PathLike[str],
        text_tower: str | os.PathLike[str] | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        preprocess: Preprocess | None = None,
        logit_scale: float = 100.0,
        threads: int | None = None,
        name: str | None = None,
    ) -> None:
        self._image = _Tower(image_tower, 4, _FLOATS, threads)
        self.width = self._image.width
        channels, *sides = self._image.shape[1:]
        if channels not in (3, None) or len({s for s in sides if s is not None}) > 1:
            raise ValueError(
                f"{image_tower}: takes input of shape {self._image.shape}, "
                "where images are (n, 3, size, size)"
            )
        size = next((side for side in sides if side is not None), None)
        self.preprocess = preprocess or Preprocess(size=size or 224)
        if size not in (None, self.preprocess.size):
            raise ValueError(
                f"{image_tower}: takes images of {size} pixels, "
                f"the preprocessing makes {self.preprocess.size}"
            )
        self._text = None
        self._tokenizer = tokenizer
        if text_tower is not None:
            if tokenizer is None:
                raise ValueError(f"{text_tower}: a text tower needs a tokenizer")
            self._text = _Tower(text_tower, 2, _WHOLES, threads)
            if self._text.width != self.width:
                raise ValueError(
                    f"{text_tower}: features of {self._text.width} dimensions, "
                    f"but {image_tower} has {self.width}"
                )
        if not 0.0 < logit_scale < float("inf"):
            raise ValueError(f"logit_scale must be positive, not {logit_scale}")
        self.logit_scale = float(logit_scale)
        self.name = name or self._image.path.stem
        self.device, self.precision = self._image.device, self._image.precision
        # The threads that share the work on one batch wait for one another at every layer; with a
        # second batch there is something else to do. A GPU has enough to do with one.
        cores = threads or os.cpu_count() or 1
        self.batches_at_once = min(2, cores) if self.device == "cpu" else 1
        digest = hashlib.sha256()
        for tower in (self._image, self._text):
            for file in () if tower is None else tower.files:
                digest.update(file.read_bytes())
        settings = self.preprocess.as_dict() | {"logit_scale": self.logit_scale}
        digest.update(json.dumps(settings, sort_keys=True).encode())
        self.fingerprint = f"{self.name}-{digest.hexdigest()[:16]}"

    @classmethod
    def tiny(cls, *, threads: int | None = None) -> OnnxEncoder:
        """The CLIP that comes with soba: 2 million weights that know icons and nothing else."""
        return cls.load(Path(str(resources.files("soba.tiny"))), threads=threads, name="tiny")

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, threads: int | None = None, name: str | None = None
    ) -> OnnxEncoder:
        """A model folder, its image.onnx, or the file of a lone image tower."""
        path = Path(path)
        if path.name == "image.onnx" and (path.parent / "open_clip_config.json").is_file():
            path = path.parent
        if path.suffix == ".onnx":
            return cls(path, threads=threads, name=name)
        image, text, config = (
            path / file for file in ("image.onnx", "text.onnx", "open_clip_config.json")
        )
        if not image.is_file():
            raise FileNotFoundError(f"{path}: no image.onnx in it, so it is not an ONNX model")
        settings = _settings(config)
        return cls(
            image,
            text if text.is_file() else None,
            threads=threads,
            name=name or path.resolve().name,
            **settings,
        )

    def encode_pixels(self, pixels: np.ndarray) -> np.ndarray:
        check_pixels(pixels, self.preprocess.size)
        return self._image.run(pixels)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        tokens = self.tokens(check_texts(texts))
        assert self._text is not None
        return self._text.run(tokens)

    def tokens(self, texts: Sequence[str]) -> np.ndarray:
        """(m, context length) token ids, as the text tower reads them."""
        if self._text is None or self._tokenizer is None:
            raise ValueError(
                f"{self._image.path}: has no text tower beside it (text.onnx, described by "
                "open_clip_config.json); give text features made with the same model"
            )
        return np.asarray(self._tokenizer(list(texts)))


class _Tower:
    """One ONNX file with one input and one (n, d) output of unit rows."""

    def __init__(
        self, path: str | os.PathLike[str], rank: int, kinds: dict[str, Any], threads: int | None
    ) -> None:
        try:
            import onnxruntime as ort
        except ImportError as error:
            raise ImportError("ONNX models need: pip install 'soba-tta[cli]'") from error
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: no such file")
        options = ort.SessionOptions()
        options.log_severity_level = 3  # errors only: it warns of things nobody can change
        # Threads that wait do not burn the core that decodes the next images.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # On x86 CPUs without VNNI, int8 products are added up in 16 bits and overflow: features of
        # quantised models become garbage. This asks for a slower product there, and only there.
        options.add_session_config_entry("session.x64quantprecision", "1")
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session = ort.InferenceSession(
                str(self.path), options, providers=ort.get_available_providers()
            )
        except Exception as error:  # onnxruntime has a dozen kinds, none of them public
            raise ValueError(f"{self.path}: not a usable ONNX model ({_line(error)})") from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self.shape = [side if isinstance(side, int) else None for side in inputs[0].shape]
        if len(inputs) != 1 or len(self.shape) != rank or inputs[0].type not in kinds:
            inputs_given = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs)
            raise ValueError(
                f"{self.path}: expected one input of {rank} dimensions, not {inputs_given}"
            )
        flat = [o for o in outputs if len(o.shape) == 2 and o.type in _FLOATS]
        if not flat or not isinstance(flat[0].shape[1], int):
            outputs_given = ", ".join(f"{o.name} {o.shape}" for o in outputs)
            raise ValueError(
                f"{self.path}: expected an output of shape (n, d), not {outputs_given}"
            )
        self._input, self._dtype = inputs[0].name, kinds[inputs[0].type]
        self._output, self.width = flat[0].name, int(flat[0].shape[1])
        self.precision = "fp16" if self._dtype is np.float16 else "fp32"
        providers = (p.removesuffix("ExecutionProvider") for p in self._session.get_providers())
        self.device = next((_DEVICES[p] for p in providers if p in _DEVICES), "cpu")

    @property
    def files(self) -> list[Path]:
        """The model, and the file of its weights where they are kept apart."""
        apart = (self.path.with_name(self.path.name + end) for end in (".data", "_data"))
        return [self.path, *(file for file in apart if file.is_file())]

    def run(self, rows: np.ndarray) -> np.ndarray:
        fixed = self.shape[0]  # a model exported for one batch size is fed full batches
        result = np.empty((len(rows), self.width), np.float32)
        step = fixed or _BATCH
        for start in range(0, len(rows), step):
            part = np.ascontiguousarray(rows[start : start + step], self._dtype)
            count = len(part)
            if fixed is not None and count < fixed:
                part = np.concatenate([part, np.repeat(part[-1:], fixed - count, axis=0)])
            result[start : start + count] = self._run(part)[:count]
        # A row without a direction becomes NaN, which those who read features report.
        with np.errstate(divide="ignore", invalid="ignore"):
            result /= np.linalg.norm(result, axis=1, keepdims=True)
        return result

    def _run(self, part: np.ndarray) -> np.ndarray:
        try:
            (features,) = self._session.run([self._output], {self._input: part})
        except Exception as error:
            raise ValueError(
                f"{self.path}: cannot take input of shape {part.shape} ({_line(error)})"
            ) from error
        return np.asarray(features)


def _settings(config: Path) -> dict[str, Any]:
    """Preprocessing, tokenizer and scale as open_clip_config.json states them."""
    if not config.is_file():
        return {}
    try:
        content = parse_json(config.read_text())
        model, settings = content["model_cfg"], content.get("soba", {})
        size = int(model["vision_cfg"]["image_size"])
        preprocess = Preprocess.from_config(content.get("preprocess_cfg", {}), size)
        length = int(model["text_cfg"]["context_length"])
        tokenizer = settings.get("tokenizer", "clip")
        scale = float(settings.get("logit_scale", 100.0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{config}: not a model description ({error!r})") from error
    if tokenizer not in ("bytes", "clip"):
        raise ValueError(f"{config}: tokenizer must be bytes or clip, not {tokenizer!r}")
    tokenize = ByteTokenizer(length) if tokenizer == "bytes" else _ClipTokenizer(length)
    return {"preprocess": preprocess, "tokenizer": tokenize, "logit_scale": scale}


class _ClipTokenizer:
    """CLIP's byte-pair encoding, which open_clip carries; loaded when first used."""

    def __init__(self, context_length: int) -> None:
        self.context_length = context_length

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        tokens: np.ndarray = self._vocabulary(texts).numpy()
        return tokens

    @cached_property
    def _vocabulary(self) -> Any:
        try:
            from open_clip.tokenizer import SimpleTokenizer
        except (ImportError, RuntimeError) as error:  # a torchvision of another torch: RuntimeError
            raise no_open_clip(error) from error
        return SimpleTokenizer(context_length=self.context_length)


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
