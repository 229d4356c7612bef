"""The contract of every adapter: features in, logits out, state that can be saved."""

from __future__ import annotations

import inspect
import json
import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from soba._files import load_checked, save_checked
from soba.adapt._arrays import (
    Array,
    Batch,
    clip_logits,
    like,
    read_batch,
    read_ids,
    read_text,
    softmax,
)

_FORMAT = 1  # of the state; a file of a later format is refused


class Adapter(ABC):
    """A zero-shot classifier that may learn from the unlabelled samples it sees.

    Parameters
    ----------
    text_features
        (C, d) text weights, a row per class; normalised here.
    scale
        CLIP's logit scale: 100 for OpenAI's models. Entropies and pseudo-labels depend on it.

    Features are numpy arrays or torch tensors of shape (n, d), (d,) for one sample, or
    (n, V, d) for V views of each; results are of the same kind and on the same device.
    float16 is computed in float32.
    """

    name: ClassVar[str]
    needs: ClassVar[str] = "features"  # what `soba methods` says it needs
    provenance: ClassVar[str] = "official algorithm"
    least_views: ClassVar[int] = 1  # above 1 it takes (n, V, d) only
    episodic: ClassVar[bool] = False  # each image by itself: the order of a stream is nothing to it
    per_prompt: ClassVar[bool] = False  # built from (P, C, d), a text matrix per prompt

    def __init__(self, text_features: Array, *, scale: float = 100.0) -> None:
        given = read_text(text_features, per_prompt=self.per_prompt)
        self._given_text = given  # float32 unit rows: (C, d), or (P, C, d) of prompts
        self.text_features = read_text(given.mean(axis=0)) if self.per_prompt else given  # (C, d)
        self.scale = positive(scale, "scale")
        if self.scale > 1e38:
            raise ValueError(f"scale {scale!r} is beyond float32")
        self._scaled_text = self.text_features * np.float32(self.scale)
        self._mirrors: dict[str, tuple[np.ndarray, Any, Array]] = {}

    # Verbs ------------------------------------------------------------------------------------

    def adapt(self, features: Array, *, ids: Any = None) -> Array:
        """Learn from each sample in order, then score it: (n, d) -> (n, C) logits.

        `ids` are int64, unique within a stream; a sample whose id is known is scored and changes
        nothing. By default samples are numbered by the running count.
        """
        batch = self._read(features)
        checked = None if ids is None else read_ids(ids, len(batch))
        return batch.unwrap(self._adapt(batch, checked))

    def predict(self, features: Array) -> Array:
        """Logits (n, C) under what is known now; changes nothing."""
        batch = self._read(features)
        return batch.unwrap(self._predict(batch))

    def predict_proba(self, features: Array) -> Array:
        """Probabilities (n, C) under what is known now; changes nothing."""
        batch = self._read(features)
        return batch.unwrap(self._probabilities(batch, self._predict(batch)))

    def top(self, features: Array, k: int = 1) -> tuple[Array, Array]:
        """The k likeliest classes of each sample and their probabilities, (n, k) each."""
        if not 1 <= k <= self.classes:
            raise ValueError(f"k must be between 1 and the {self.classes} classes, not {k}")
        batch = self._read(features)
        xp, probs = batch.xp, self._probabilities(batch, self._predict(batch))
        indices = xp.argsort(-probs, axis=-1, stable=True)[:, :k]
        return batch.unwrap(indices), batch.unwrap(xp.take_along_axis(probs, indices, axis=-1))

    def decide(self, features: Array, *, unsure: float = 0.0) -> Array:
        """The likeliest class of each sample; -1 where its probability is below `unsure`."""
        if not 0.0 <= unsure <= 1.0:
            raise ValueError(f"unsure must be a probability, not {unsure!r}")
        batch = self._read(features)
        xp, probs = batch.xp, self._probabilities(batch, self._predict(batch))
        classes = xp.argmax(probs, axis=-1)
        sure = xp.max(probs, axis=-1) >= unsure
        return batch.unwrap(xp.where(sure, classes, xp.full_like(classes, -1)))

    def reset(self) -> Self:
        """Forget everything that was learned from samples."""
        self._reset()
        return self

    def clone(self) -> Self:
        """An independent adapter in the same state."""
        return type(self).from_state(self.state())

    def with_text(self, text_features: Array) -> Self:
        """The same adapter, and the same samples, under other classes or prompts.

        Stored samples are scored and queued again, so a class can be added, dropped or renamed
        without starting over. Returns a new adapter; with the same text, a plain copy.
        """
        text = read_text(text_features, per_prompt=self.per_prompt)
        if text.shape[-1] != self.width:
            raise ValueError(
                f"text features have {text.shape[-1]} dimensions where the adapter has {self.width}"
            )
        if np.array_equal(text, self._given_text):
            return self.clone()
        twin = type(self)(text, **self.params)
        twin._take_over(self)
        return twin

    # State ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All there is to know: {"meta": plain values, "arrays": name -> numpy array}."""
        meta = {"format": _FORMAT, "adapter": self.name, "params": self.params} | self._meta()
        arrays = {"text_features": self._given_text} | self._arrays()
        return {"meta": meta, "arrays": {name: np.array(a) for name, a in arrays.items()}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The adapter that :meth:`state` described."""
        meta = state["meta"]
        arrays = {name: np.array(array) for name, array in state["arrays"].items()}
        if meta["format"] != _FORMAT:
            raise ValueError(f"state of format {meta['format']}, this version reads {_FORMAT}")
        if meta["adapter"] != cls.name:
            raise ValueError(f"state of adapter {meta['adapter']!r}, not of {cls.name!r}")
        adapter = cls(arrays["text_features"], **meta["params"])
        adapter._restore(arrays, meta)
        return adapter

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_state, (self.state(),)

    def save(self, path: str | os.PathLike[str], *, note: dict[str, Any] | None = None) -> None:
        """Write the state to a file: atomic, fsynced, checksummed (safetensors).

        `note` is what the file should say besides, in plain values: class names, the encoder.
        """
        state = self.state()
        meta = state["meta"] if note is None else state["meta"] | {"note": note}
        save_checked(path, state["arrays"], meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str], text: Array | None = None, **expected: Any) -> Self:
        """Read a state file; `text` and hyper-parameters, where given, must match what is in it."""
        return cls._loaded(path, *load_checked(path), text, expected)

    @classmethod
    def _loaded(
        cls,
        path: str | os.PathLike[str],
        arrays: dict[str, np.ndarray],
        meta: dict[str, Any],
        text: Array | None,
        expected: dict[str, Any],
    ) -> Self:
        try:
            adapter = cls.from_state({"meta": meta, "arrays": arrays})
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{path}: {error}") from error
        if text is not None:
            given = read_text(text, per_prompt=cls.per_prompt)
            if not np.array_equal(given, adapter._given_text):
                raise ValueError(f"{path}: saved with other text features than the ones given")
        for name, value in expected.items():
            if name not in adapter.params:
                raise ValueError(f"{path}: {cls.__name__} has no parameter {name!r}")
            if adapter.params[name] != _plain(value):
                raise ValueError(
                    f"{path}: saved with {name}={adapter.params[name]!r}, not {value!r}"
                )
        return adapter

    # What it is -------------------------------------------------------------------------------

    @property
    def classes(self) -> int:
        """Number of classes C."""
        return int(self.text_features.shape[0])

    @property
    def width(self) -> int:
        """Number of feature dimensions d."""
        return int(self.text_features.shape[1])

    @property
    def params(self) -> dict[str, Any]:
        """The constructor's keyword arguments, as plain values."""
        return {name: _plain(getattr(self, name)) for name in parameter_defaults(type(self))}

    def __repr__(self) -> str:
        defaults = parameter_defaults(type(self))
        changed = [f"{k}={v!r}" for k, v in self.params.items() if v != _plain(defaults[k])]
        size = f"{self.classes} classes x {self.width}"
        return f"{type(self).__name__}({', '.join([f'<{size}>', *changed])})"

    # For methods to fill in -------------------------------------------------------------------

    @abstractmethod
    def _predict(self, batch: Batch) -> Array:
        """Logits under the present state."""

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        """Learn and score; a method that learns nothing just scores."""
        return self._predict(batch)

    def _probabilities(self, batch: Batch, logits: Array) -> Array:
        return softmax(batch.xp, logits)

    def _reset(self) -> None:
        return None

    def _take_over(self, other: Self) -> None:
        """Learn anew, under this text, what `other` has stored."""
        return None

    def _arrays(self) -> dict[str, np.ndarray]:
        return {}

    def _meta(self) -> dict[str, Any]:
        return {}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        return None

    # For methods to use -----------------------------------------------------------------------

    def _read(self, features: Array) -> Batch:
        """Checked input, with as many views as the method needs."""
        batch = read_batch(features, self.width)
        views = int(batch.x.shape[1]) if batch.views else 1
        if views < self.least_views:
            raise ValueError(
                f"{self.name} needs views: features of shape (n, V, {self.width}) with V of "
                f"{self.least_views} at least, not {tuple(features.shape)}"
            )
        return batch

    def _clip_logits(self, batch: Batch) -> tuple[Array, Array]:
        """(features, CLIP logits) of a batch."""
        return clip_logits(batch, self._mirror("text", self._scaled_text, batch))

    def _mirror(self, name: str, array: np.ndarray, batch: Batch) -> Array:
        """A host array in the batch's library, dtype and device, kept until the array changes."""
        kind = (batch.xp, batch.x.dtype, batch.device)
        known = self._mirrors.get(name)
        if known is not None and known[0] is array and known[1] == kind:
            return known[2]
        mirrored = like(batch, array)
        self._mirrors[name] = (array, kind, mirrored)
        return mirrored


def read_note(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What was noted when a state was saved; empty if nothing was."""
    _, meta = load_checked(path)
    note = meta.get("note")
    return note if isinstance(note, dict) else {}


def parameter_defaults(cls: type[Adapter]) -> dict[str, Any]:
    """Names and default values of an adapter's keyword arguments."""
    signature = inspect.signature(cls.__init__)
    return {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def positive(value: float, name: str) -> float:
    """`value` as a float, if it is a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{name} must be positive and finite, not {value!r}")
    return float(value)


def whole(value: int, name: str, least: int = 1) -> int:
    """`value` as an int, if it is a whole number and large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number, {least} at least, not {value!r}")
    return int(value)


def at_least_zero(value: float, name: str) -> float:
    """`value` as a float, if it is zero or a positive number."""
    return 0.0 if value == 0 and not isinstance(value, bool) else positive(value, name)


def one_of(value: str, known: tuple[str, ...], name: str) -> str:
    """`value`, if it is one of the known words."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return value


def _plain(value: Any) -> Any:
    """A hyper-parameter as JSON gives it back, so that saved and given values compare."""
    if isinstance(value, np.generic):
        value = value.item()
    return json.loads(json.dumps(value))
