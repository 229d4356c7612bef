"""Feature sets: image and text features of one encoder in one file.

`.safetensors` is ours, memory-mapped; `.npz` and `.pt` of other people are read too, without ever
running what a pickle holds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors

from soba._files import DTYPES, save_arrays

_ARRAYS = (
    "image_features",
    "text_features",
    "prompt_features",
    "labels",
    "support_features",
    "support_labels",
    "val_features",
    "val_labels",
)
_NUMPY = {kind: dtype for dtype, kind in DTYPES.items()}


@dataclass(frozen=True)
class FeatureSet:
    """Features of a labelled or unlabelled image set, and the text weights to score them with.

    Parameters
    ----------
    image_features
        (n, d), or (n, V, d) with V views of each image.
    text_features
        (C, d), a row per class.
    logit_scale
        CLIP's, 100 for OpenAI's models.
    labels
        (n,) class indices, where known.
    class_names, prompts
        What the text features were made of.
    prompt_features
        (P, C, d), the text features of each prompt by itself, for methods that let prompts vote.
    support_features, support_labels, val_features, val_labels
        Labelled training and validation samples, for few-shot methods.
    fingerprint
        Of encoder, preprocessing, templates and scale. Sets with different ones do not mix.
    keys
        What each row shows: the path of its image, say.
    view_policy
        How the views of each image were made.
    source
        The file it was read from, for messages.

    >>> features = FeatureSet(np.eye(3), np.eye(3), labels=np.arange(3))
    >>> len(features), features.classes, features.width
    (3, 3, 3)
    """

    image_features: np.ndarray
    text_features: np.ndarray
    logit_scale: float = 100.0
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    prompts: tuple[str, ...] | None = None
    prompt_features: np.ndarray | None = None
    support_features: np.ndarray | None = None
    support_labels: np.ndarray | None = None
    val_features: np.ndarray | None = None
    val_labels: np.ndarray | None = None
    fingerprint: str | None = None
    keys: tuple[str, ...] | None = None
    view_policy: str | None = None
    source: Path | None = None

    def __post_init__(self) -> None:
        problem = next(self._problems(), None)
        if problem:
            raise ValueError(self._say(problem))

    def __len__(self) -> int:
        return len(self.image_features)

    @property
    def classes(self) -> int:
        return len(self.text_features)

    @property
    def width(self) -> int:
        return int(self.text_features.shape[1])

    @property
    def views(self) -> int:
        """Views of each image: 1 for (n, d) features."""
        return int(self.image_features.shape[1]) if self.image_features.ndim == 3 else 1

    @property
    def support(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Labelled training samples, if there are any."""
        if self.support_features is None or self.support_labels is None:
            return None
        return self.support_features, self.support_labels

    @property
    def val(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Labelled validation samples, if there are any."""
        if self.val_features is None or self.val_labels is None:
            return None
        return self.val_features, self.val_labels

    def with_support(self, other: FeatureSet) -> FeatureSet:
        """This set, with the images of another as labelled training samples."""
        labels = self._labels_of(other)
        return dataclasses.replace(
            self, support_features=other.image_features, support_labels=labels
        )

    def with_val(self, other: FeatureSet) -> FeatureSet:
        """This set, with the images of another as labelled validation samples."""
        labels = self._labels_of(other)
        return dataclasses.replace(self, val_features=other.image_features, val_labels=labels)

    def check_encoder(self, other: FeatureSet) -> None:
        """Raise if the features of another set, of any classes and prompts, are not comparable."""
        self._check_fingerprint(
            other, _encoder_of(self.fingerprint), _encoder_of(other.fingerprint)
        )
        if other.width != self.width:
            raise ValueError(
                other._say(
                    f"has features of {other.width} dimensions, but {self.source or 'this set'} "
                    f"of {self.width}: features of different encoders do not mix"
                )
            )

    def check_values(self) -> None:
        """Read all features once; raise if a row is zero or not finite."""
        for name in _ARRAYS:
            array = getattr(self, name)
            if array is None or array.dtype.kind != "f":
                continue
            rows_at_a_time = max(1, (1 << 22) // max(1, array[0:1].size))
            for start in range(0, len(array), rows_at_a_time):
                block = np.asarray(array[start : start + rows_at_a_time], np.float32)
                rows = block.reshape(-1, block.shape[-1])
                bad = ~np.isfinite(rows).all(axis=1)
                if not bad.any():
                    bad = ~rows.any(axis=1)
                    if not bad.any():
                        continue
                    problem = "is all zeros"
                else:
                    problem = "holds NaN or infinite values"
                row = start + int(np.flatnonzero(bad)[0]) * len(block) // len(rows)
                raise ValueError(self._say(f"{name}: row {row} {problem}"))

    # Files ------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read .safetensors (memory-mapped), .npz, or .pt (tensors only; needs torch)."""
        file = Path(path)
        readers = {".safetensors": _read_safetensors, ".npz": _read_npz, ".pt": _read_pt}
        if file.suffix not in readers:
            raise ValueError(f"{file}: feature files end in {', '.join(readers)}")
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file")
        found = readers[file.suffix](file)
        missing = [key for key in ("image_features", "text_features") if key not in found]
        if missing:
            raise ValueError(f"{file}: lacks {' and '.join(missing)}")
        known = {field.name for field in dataclasses.fields(cls)}
        values = {key: value for key, value in found.items() if key in known}
        for key in ("class_names", "prompts", "keys"):
            if values.get(key) is not None:
                values[key] = tuple(str(text) for text in values[key])
        try:
            values["logit_scale"] = float(values.get("logit_scale", 100.0))
            for key in ("fingerprint", "view_policy"):
                if values.get(key) is not None:
                    values[key] = str(values[key])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file}: logit_scale is not a number ({error})") from error
        return cls(**values | {"source": file})

    def save(self, path: str | os.PathLike[str], *, note: dict[str, Any] | None = None) -> None:
        """Write a .safetensors file: whole, or not at all.

        `note` is what the file should say besides, in plain values; :func:`read_note` reads it.
        """
        if Path(path).suffix != ".safetensors":
            raise ValueError(f"{path}: feature sets are saved as .safetensors")
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        meta = {
            "logit_scale": self.logit_scale,
            "class_names": self.class_names,
            "prompts": self.prompts,
            "fingerprint": self.fingerprint,
            "keys": self.keys,
            "view_policy": self.view_policy,
        }
        texts = {"soba": json.dumps(meta)}
        save_arrays(path, arrays, texts if note is None else texts | {"note": json.dumps(note)})

    # Checks -----------------------------------------------------------------------------------

    def _problems(self) -> Iterator[str]:
        for name in _ARRAYS:
            array = getattr(self, name)
            if array is None:
                continue
            is_labels = name.endswith("labels")
            if not isinstance(array, np.ndarray) or array.dtype.kind not in (
                "iu" if is_labels else "f"
            ):
                kind = "integers" if is_labels else "floating point"
                yield f"{name} must be {kind}, not {getattr(array, 'dtype', type(array).__name__)}"
                return
        text, images = self.text_features, self.image_features
        if text.ndim != 2 or 0 in text.shape:
            yield f"text_features must have shape (C, d), not {text.shape}"
        if not 0.0 < self.logit_scale < float("inf"):
            yield f"logit_scale must be positive, not {self.logit_scale}"
        if self.class_names is not None and len(self.class_names) != len(text):
            yield f"{len(self.class_names)} class_names for {len(text)} rows of text features"
        if self.keys is not None and len(self.keys) != len(images):
            yield f"{len(self.keys)} keys for {len(images)} rows of image features"
        if self.prompt_features is not None:
            shape = self.prompt_features.shape
            if len(shape) != 3 or shape[0] == 0 or shape[1:] != text.shape:
                yield (
                    f"prompt_features must have shape (P, {', '.join(map(str, text.shape))}) to "
                    f"match the text features, not {shape}"
                )
            elif self.prompts is not None and len(self.prompts) != shape[0]:
                yield f"{len(self.prompts)} prompts for prompt_features of {shape[0]}"
        for name, features, labels in (
            ("image_features", images, self.labels),
            ("support_features", self.support_features, self.support_labels),
            ("val_features", self.val_features, self.val_labels),
        ):
            label_name = name.replace("image_", "").replace("features", "labels")
            if features is None:
                if labels is not None:
                    yield f"{label_name} without {name}"
                continue
            if features.ndim not in (2, 3) or features.shape[-1] != text.shape[1]:
                yield (
                    f"{name} must have shape (n, {text.shape[1]}) or (n, V, {text.shape[1]}) to "
                    f"match the text features, not {features.shape}"
                )
            if labels is None:
                if name != "image_features":
                    yield f"{name} without {label_name}"
                continue
            if labels.shape != features.shape[:1]:
                yield f"{label_name} of shape {labels.shape} for {len(features)} rows of {name}"
            elif len(labels) and (labels.min() < 0 or labels.max() >= len(text)):
                yield (
                    f"{label_name} out of range: {labels.min()} to {labels.max()} "
                    f"where there are {len(text)} classes"
                )

    def _labels_of(self, other: FeatureSet) -> np.ndarray:
        if other.labels is None:
            raise ValueError(other._say("has no labels"))
        self._check_fingerprint(other, self.fingerprint, other.fingerprint)
        if None not in (self.class_names, other.class_names) and (
            self.class_names != other.class_names
        ):
            raise ValueError(other._say(f"has other class names than {self.source or 'this set'}"))
        if other.classes != self.classes or other.width != self.width:
            raise ValueError(
                other._say(
                    f"has text features of shape {other.text_features.shape}, but "
                    f"{self.source or 'this set'} {self.text_features.shape}"
                )
            )
        return other.labels

    def _check_fingerprint(self, other: FeatureSet, own: str | None, others: str | None) -> None:
        if None not in (own, others) and own != others:
            raise ValueError(
                other._say(
                    f"was made with encoder {others}, but {self.source or 'this set'} "
                    f"with {own}: features of different encoders do not mix"
                )
            )

    def _say(self, problem: str) -> str:
        return f"{self.source}: {problem}" if self.source else problem


def read_note(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What was noted when a feature set was saved; empty if nothing was."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            note = json.loads((file.metadata() or {}).get("note", "{}"))
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: not a readable safetensors feature file ({error})") from error
    return note if isinstance(note, dict) else {}


def _encoder_of(fingerprint: str | None) -> str | None:
    """A fingerprint without the digest of the templates that extraction puts behind it.

    >>> _encoder_of("tiny-0123456789abcdef-01234567"), _encoder_of("tiny-0123456789abcdef")
    ('tiny-0123456789abcdef', 'tiny-0123456789abcdef')
    """
    return None if fingerprint is None else re.sub("-[0-9a-f]{8}$", "", fingerprint)


def _read_safetensors(file: Path) -> dict[str, Any]:
    try:
        with safetensors.safe_open(file, framework="numpy") as checked:
            meta = json.loads((checked.metadata() or {}).get("soba", "{}"))
        with file.open("rb") as raw:
            length = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(length))
        found: dict[str, Any] = dict(meta)
        for name, entry in header.items():
            if name in _ARRAYS:
                # safetensors hands out copies; mapping the bytes keeps large sets out of memory.
                found[name] = np.memmap(
                    file,
                    _NUMPY[entry["dtype"]],
                    "r",
                    8 + length + entry["data_offsets"][0],
                    tuple(entry["shape"]),
                )
        return found
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{file}: not a readable safetensors feature file ({error})") from error


def _read_npz(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as raw, zipfile.ZipFile(raw) as archive:
            found = {}
            for field in dataclasses.fields(FeatureSet):
                if f"{field.name}.npy" in archive.namelist():
                    with archive.open(f"{field.name}.npy") as member:
                        found[field.name] = np.lib.format.read_array(member, allow_pickle=False)
    except (ValueError, OSError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{file}: not a readable .npz feature file ({error})") from error
    return {name: value.item() if value.ndim == 0 else value for name, value in found.items()}


def _read_pt(file: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        hint = "pip install 'soba-tta[torch]'"
        raise ImportError(f"{file}: reading .pt needs torch: {hint}") from error
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds; all mean that the file is not to be used
        raise ValueError(
            f"{file}: not a file of plain tensors; nothing in it was run ({type(error).__name__})"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{file}: holds a {type(found).__name__}, not a dictionary of tensors")
    return {
        str(name): value.numpy() if isinstance(value, torch.Tensor) and value.ndim else value
        for name, value in found.items()
    }
