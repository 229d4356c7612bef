"""Feature sets: image and text features of one encoder in one file."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors

from soba._feature_files import ARRAYS, LISTS, READERS, TEXTS
from soba._files import parse_json, save_arrays


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
    encoder_fingerprint
        Of the encoder and its preprocessing. Image features with different ones do not mix.
    templates_fingerprint
        Of the prompts. Image features do not depend on it: sets of other prompts mix, and who
        compares their text features can see that they are of others.
    keys
        What each row shows: the path of its image, say.
    view_policy
        How the views of each image were made.
    source
        The file it was read from, for messages.

    Examples
    --------
    >>> features = FeatureSet(np.eye(3), np.eye(3), labels=np.arange(3))
    >>> len(features), features.n_classes, features.dim
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
    encoder_fingerprint: str | None = None
    templates_fingerprint: str | None = None
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
    def n_classes(self) -> int:
        return len(self.text_features)

    @property
    def dim(self) -> int:
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
        one, two = self.encoder_fingerprint, other.encoder_fingerprint
        if None not in (one, two) and one != two:
            raise ValueError(
                other._say(
                    f"was made with encoder {two}, but {self.source or 'this set'} "
                    f"with {one}: features of different encoders do not mix"
                )
            )
        if other.dim != self.dim:
            raise ValueError(
                other._say(
                    f"has features of {other.dim} dimensions, but {self.source or 'this set'} "
                    f"of {self.dim}: features of different encoders do not mix"
                )
            )

    def check_values(self) -> None:
        """Read all features once; raise if a row is zero or not finite."""
        for name in ARRAYS:
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
        if file.suffix not in READERS:
            raise ValueError(f"{file}: feature files end in {', '.join(READERS)}")
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file")
        values = READERS[file.suffix](file)
        missing = [key for key in ("image_features", "text_features") if key not in values]
        if missing:
            raise ValueError(f"{file}: lacks {' and '.join(missing)}")
        values = _both_fingerprints(values.pop("fingerprint", None)) | values
        for key in LISTS:
            texts = values.get(key)
            if texts is None:
                continue
            if not isinstance(texts, list | tuple | np.ndarray):
                raise ValueError(f"{file}: {key} is not a list of texts")
            values[key] = tuple(str(text) for text in texts)
        try:
            values["logit_scale"] = float(values.get("logit_scale", 100.0))
            for key in TEXTS:
                if values.get(key) is not None:
                    values[key] = str(values[key])
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file}: logit_scale is not a number ({error})") from error
        return cls(**values | {"source": file})

    def save(self, path: str | os.PathLike[str], *, note: dict[str, Any] | None = None) -> None:
        """Write a .safetensors file: whole, or not at all.

        `note` is what the file should say besides, in plain values; `read_note` reads it.
        """
        if Path(path).suffix != ".safetensors":
            raise ValueError(f"{path}: feature sets are saved as .safetensors")
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        meta = {
            "logit_scale": self.logit_scale,
            "class_names": self.class_names,
            "prompts": self.prompts,
            "encoder_fingerprint": self.encoder_fingerprint,
            "templates_fingerprint": self.templates_fingerprint,
            "keys": self.keys,
            "view_policy": self.view_policy,
        }
        texts = {"soba": json.dumps(meta)}
        save_arrays(path, arrays, texts if note is None else texts | {"note": json.dumps(note)})

    # Checks -----------------------------------------------------------------------------------

    def _problems(self) -> Iterator[str]:
        """What is wrong with this set, the first first: what comes later may follow from it."""
        yield from self._wrong_kinds()
        yield from self._misfits_of_text()
        parts = (
            ("image_features", self.image_features, "labels", self.labels),
            ("support_features", self.support_features, "support_labels", self.support_labels),
            ("val_features", self.val_features, "val_labels", self.val_labels),
        )
        for part in parts:
            yield from self._misfits_of_part(*part)

    def _wrong_kinds(self) -> Iterator[str]:
        """Labels that are no integers, features that are no floats."""
        for name in ARRAYS:
            array = getattr(self, name)
            if array is None:
                continue
            kinds, numbers = (
                ("iu", "integers") if name.endswith("labels") else ("f", "floating point")
            )
            if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
                given = getattr(array, "dtype", type(array).__name__)
                yield f"{name} must be {numbers}, not {given}"

    def _misfits_of_text(self) -> Iterator[str]:
        """What does not fit the classes: the text features, and what is said of them."""
        text, images = self.text_features, self.image_features
        if text.ndim != 2 or 0 in text.shape:
            yield f"text_features must have shape (C, d), not {text.shape}"
        if not 1.0 <= self.logit_scale < float("inf"):
            yield f"logit_scale must be 1 at least, not {self.logit_scale}; OpenAI has 100"
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

    def _misfits_of_part(
        self, name: str, features: np.ndarray | None, label_name: str, labels: np.ndarray | None
    ) -> Iterator[str]:
        """What does not fit in one part of the set: its features and their labels."""
        text = self.text_features
        if features is None:
            if labels is not None:
                yield f"{label_name} without {name}"
            return
        if features.ndim not in (2, 3) or features.shape[-1] != text.shape[1]:
            yield (
                f"{name} must have shape (n, {text.shape[1]}) or (n, V, {text.shape[1]}) to "
                f"match the text features, not {features.shape}"
            )
        if labels is None:
            if name != "image_features":
                yield f"{name} without {label_name}"
            return
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
        self.check_encoder(other)
        if None not in (self.class_names, other.class_names) and (
            self.class_names != other.class_names
        ):
            raise ValueError(other._say(f"has other class names than {self.source or 'this set'}"))
        if other.n_classes != self.n_classes:
            raise ValueError(
                other._say(
                    f"has text features of shape {other.text_features.shape}, but "
                    f"{self.source or 'this set'} {self.text_features.shape}"
                )
            )
        return other.labels

    def _say(self, problem: str) -> str:
        return f"{self.source}: {problem}" if self.source else problem


def read_note(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What was noted when a feature set was saved; empty if nothing was."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            note = parse_json((file.metadata() or {}).get("note", "{}"))
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: not a readable safetensors feature file ({error})") from error
    return note if isinstance(note, dict) else {}


def _both_fingerprints(joined: Any) -> dict[str, str]:
    """Those of encoder and of templates, from a file that joined them, or had the encoder's only.

    >>> _both_fingerprints("tiny-0123456789abcdef-01234567")["templates_fingerprint"]
    '01234567'
    """
    if joined is None:
        return {}
    encoder, templates = str(joined), re.search("-([0-9a-f]{8})$", str(joined))
    if templates is None:
        return {"encoder_fingerprint": encoder}
    return {
        "encoder_fingerprint": encoder[: templates.start()],
        "templates_fingerprint": templates[1],
    }
