"""The contract of every adapter: features in, logits out, state that can be saved."""

from __future__ import annotations

import inspect
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from soba._files import load_checked, save_checked
from soba._formats import FORMAT, upgraded_state
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

# For authors of methods, who check their parameters with these.
from soba.adapt._values import at_least_zero as at_least_zero
from soba.adapt._values import checked_scale
from soba.adapt._values import one_of as one_of
from soba.adapt._values import positive as positive
from soba.adapt._values import whole as whole
from soba.adapt.card import Card
from soba.adapt.view import View


class Adapter(ABC):
    """A zero-shot classifier that may learn from the unlabelled samples it sees.

    Parameters
    ----------
    text_features
        (C, d) text weights, a row per class; normalised here. A `FeatureSet` in their place
        brings its logit scale along, so that it cannot be forgotten.
    logit_scale
        CLIP's logit scale: 100 for OpenAI's models. Entropies and pseudo-labels depend on it.
        Checkpoints store its logarithm, 4.6052: give exp(4.6052) = 100.

    Notes
    -----
    Features are numpy arrays or torch tensors of shape (n, d), (d,) for one sample, or
    (n, V, d) for V views of each; results are of the same kind and on the same device.
    float16 is computed in float32.

    Threads may share an adapter. What changes it (adapt, learn, refresh, merge, fit, reset) takes
    its lock; what only scores works on what was known when the call began, and holds no lock while
    it computes; state, save, copy and pickling read under the lock, which stays behind. No call
    ever holds the locks of two adapters.
    """

    card: ClassVar[Card]  # what is known of the method: its name, what it needs, how it looks
    _stored_as: ClassVar[Mapping[str, str]] = {}  # parameters whose attributes have other names

    def __init__(self, text_features: Array, *, logit_scale: float = 100.0) -> None:
        per_prompt = self.card.per_prompt
        if hasattr(text_features, "text_features"):
            text_features, logit_scale = _of_set(text_features, logit_scale, per_prompt)
        given = read_text(text_features, per_prompt=per_prompt)
        self._given_text = given  # float32 unit rows: (C, d), or (P, C, d) of prompts
        self.text_features = read_text(given.mean(axis=0)) if per_prompt else given  # (C, d)
        self.logit_scale = checked_scale(logit_scale)
        self._scaled_text = self.text_features * np.float32(self.logit_scale)
        self._mirrors: dict[str, tuple[np.ndarray, Any, Array]] = {}
        self._lock = threading.RLock()

    # Verbs ------------------------------------------------------------------------------------

    def adapt(self, features: Array, *, ids: Any = None) -> Array:
        """Learn from each sample in order, then score it: (n, d) -> (n, C) logits.

        `ids` are int64, 0 or more, unique within a stream; a sample whose id is known is scored
        and changes nothing. Samples without ids are counted -1, -2, ... and are all new.
        """
        batch = self._read(features)
        checked = None if ids is None else read_ids(ids, len(batch))
        with self._lock:
            return batch.unwrap(self._adapt(batch, checked))

    def logits(self, features: Array) -> Array:
        """Logits (n, C) under what is known now; changes nothing."""
        return View(self._view()).logits(features)

    def probabilities(self, features: Array) -> Array:
        """Probabilities (n, C) under what is known now; changes nothing."""
        return View(self._view()).probabilities(features)

    def top_k(self, features: Array, k: int = 1) -> tuple[Array, Array]:
        """The k likeliest classes of each sample and their probabilities, (n, k) each."""
        return View(self._view()).top_k(features, k)

    def predict(self, features: Array, *, min_confidence: float = 0.0) -> Array:
        """The likeliest class of each sample; -1 where it is less likely than `min_confidence`."""
        return View(self._view()).predict(features, min_confidence=min_confidence)

    def view(self) -> View:
        """The answers of this moment: an object that stays as it is, whatever is learned later."""
        with self._lock:
            frozen, n_seen = self._view(), getattr(self, "n_seen", 0)
        frozen._mirrors = dict(frozen._mirrors)  # arrays of the adapter's future stay out of it
        return View(frozen, n_seen)

    def reset(self) -> Self:
        """Forget everything that was learned from samples."""
        with self._lock:
            self._reset()
        return self

    def copy(self) -> Self:
        """An independent adapter in the same state."""
        return type(self).from_state(self.state())

    def with_text(self, text_features: Array) -> Self:
        """The same adapter, and the same samples, under other classes or prompts.

        Stored samples are scored and queued again, so a class can be added, dropped or renamed
        without starting over. Returns a new adapter; with the same text, a plain copy.
        """
        text = read_text(text_features, per_prompt=self.card.per_prompt)
        if text.shape[-1] != self.dim:
            raise ValueError(
                f"text features have {text.shape[-1]} dimensions where the adapter has {self.dim}"
            )
        if np.array_equal(text, self._given_text):
            return self.copy()
        twin = type(self)(text, **self.params)
        with self._lock:
            twin._take_over(self)
        return twin

    # State ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All there is to know: {"meta": plain values, "arrays": name -> numpy array}."""
        with self._lock:
            meta = {"format": FORMAT, "adapter": self.name, "params": self.params} | self._meta()
            arrays = {"text_features": self._given_text} | self._arrays()
            return {"meta": meta, "arrays": {name: np.array(a) for name, a in arrays.items()}}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """The adapter that `state` described."""
        meta, arrays = cls._checked_state(state)
        adapter = cls(arrays["text_features"], **meta["params"])
        adapter._take_up(arrays, meta)
        return adapter

    @classmethod
    def _checked_state(cls, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The meta data and copies of the arrays, if they can be of this method."""
        given, meta = upgraded_state(state["arrays"], state["meta"])
        arrays = {name: np.array(array) for name, array in given.items()}
        cls._check_meta(meta)
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"{name} holds NaN or infinite values")
        return meta, arrays

    @classmethod
    def _check_meta(cls, meta: dict[str, Any]) -> None:
        if meta["adapter"] != cls.card.name:
            raise ValueError(f"state of adapter {meta['adapter']!r}, not of {cls.card.name!r}")

    def _take_up(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Restore what a state holds, and see that it serves."""
        self._restore(arrays, meta)
        try:
            serves = bool(np.isfinite(self._try_out()).all())
        except KeyError as error:
            raise ValueError(f"the stored arrays do not fit together: no {error}") from error
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            raise ValueError(f"the stored arrays do not fit together ({error})") from error
        if not serves:
            raise ValueError("the stored arrays give NaN or infinite logits")

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
    def load(
        cls, path: str | os.PathLike[str], *, expect: Mapping[str, Any] | None = None, **needs: Any
    ) -> Self:
        """Read a state file.

        `expect` holds hyper-parameters by name, and "text_features", that must be what is in the
        file. Methods that tune prompts need `encoder=`, the model they were learned with.
        """
        arrays, meta = load_checked(path)
        return cls._loaded(path, {"meta": meta, "arrays": arrays}, expect or {}, needs)

    @classmethod
    def _loaded(
        cls,
        path: str | os.PathLike[str],
        state: dict[str, Any],
        expect: Mapping[str, Any],
        needs: Mapping[str, Any],
    ) -> Self:
        try:
            arrays, meta = upgraded_state(state["arrays"], state["meta"], path)
            adapter = cls.from_state({"meta": meta, "arrays": arrays}, **needs)
        except KeyError as error:
            raise ValueError(f"{path}: {error.args[0]} is missing from the state") from error
        except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
            raise ValueError(f"{path}: {error}") from error
        for name, value in expect.items():
            if name == "text_features":
                expected = read_text(value, per_prompt=cls.card.per_prompt)
                if not np.array_equal(expected, adapter._given_text):
                    raise ValueError(f"{path}: saved with other text features than the ones given")
                continue
            if name not in adapter.params:
                raise ValueError(f"{path}: {cls.__name__} has no parameter {name!r}")
            if adapter.params[name] != _plain(value):
                raise ValueError(
                    f"{path}: saved with {name}={adapter.params[name]!r}, not {value!r}"
                )
        return adapter

    # What it is -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The method's name, as its card has it."""
        return self.card.name

    @property
    def n_classes(self) -> int:
        """Number of classes C."""
        return int(self.text_features.shape[0])

    @property
    def dim(self) -> int:
        """Number of feature dimensions d."""
        return int(self.text_features.shape[1])

    @property
    def params(self) -> dict[str, Any]:
        """The constructor's keyword arguments, as plain values."""
        names = parameter_defaults(type(self))
        return {name: _plain(getattr(self, self._stored_as.get(name, name))) for name in names}

    def __repr__(self) -> str:
        defaults = parameter_defaults(type(self))
        changed = [f"{k}={v!r}" for k, v in self.params.items() if v != _plain(defaults[k])]
        size = f"{self.n_classes} classes x {self.dim}"
        return f"{type(self).__name__}({', '.join([f'<{size}>', *changed])})"

    # For methods to fill in -------------------------------------------------------------------

    @abstractmethod
    def _logits(self, batch: Batch) -> Array:
        """Logits under the present state."""

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        """Learn and score; a method that learns nothing just scores."""
        return self._logits(batch)

    def _view(self) -> Self:
        """This adapter as it is now, to score with: what is learned later does not change it.

        A shallow copy, so a method whose learning changes arrays in place copies these as well.
        """
        view = object.__new__(type(self))
        with self._lock:
            view.__dict__.update(self.__dict__)
        return view

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

    def _try_out(self) -> Array:
        """Logits of some sample, to see that what was restored from a file serves."""
        if self.card.episodic:  # it has learned nothing
            return np.zeros(1)
        return self._logits(Batch(np, self.text_features[:1], False))

    # For methods to use -----------------------------------------------------------------------

    def _read(self, features: Array) -> Batch:
        """Checked input, with as many views as the method needs."""
        batch = read_batch(features, self.dim)
        views = int(batch.x.shape[1]) if batch.views else 1
        if views < self.card.min_views:
            raise ValueError(
                f"{self.name} needs views: features of shape (n, V, {self.dim}) with V of "
                f"{self.card.min_views} at least, not {tuple(features.shape)}"
            )
        return batch

    def _chances(self, batch: Batch) -> Array:
        """Probabilities under the present state."""
        return softmax(batch.xp, self._logits(batch))

    def _clip_logits(self, batch: Batch) -> tuple[Array, Array]:
        """(features, CLIP logits) of a batch."""
        return clip_logits(batch, self._mirror("text", self._scaled_text, batch))

    def _mirror(self, name: str, array: np.ndarray, batch: Batch) -> Array:
        """A host array in the batch's library, dtype and device, kept until the array changes."""
        if isinstance(batch.x, np.ndarray) and array.dtype == batch.x.dtype:
            return array  # in no time: streams live here
        kind = (batch.xp, batch.x.dtype, batch.device)
        known = self._mirrors.get(name)
        if known is not None and known[0] is array and known[1] == kind:
            return known[2]
        mirrored = like(batch, array)
        self._mirrors[name] = (array, kind, mirrored)
        return mirrored


def _of_set(features: Any, logit_scale: float, per_prompt: bool) -> tuple[Array, float]:
    """The text features and the logit scale of a feature set; a scale that was given must agree."""
    text = features.prompt_features if per_prompt else features.text_features
    if text is None:
        raise ValueError(f"{features.source or 'the feature set'}: has no text features per prompt")
    if logit_scale not in (100.0, features.logit_scale):  # 100: nobody said anything
        raise ValueError(
            f"logit_scale {logit_scale!r}, where the feature set has {features.logit_scale!r}"
        )
    return text, features.logit_scale


def parameter_defaults(cls: type[Adapter]) -> dict[str, Any]:
    """Names and default values of an adapter's keyword arguments."""
    signature = inspect.signature(cls.__init__)
    return {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def _plain(value: Any) -> Any:
    """A hyper-parameter as JSON gives it back, so that saved and given values compare."""
    if isinstance(value, np.generic):
        value = value.item()
    return json.loads(json.dumps(value))
