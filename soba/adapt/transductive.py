"""What the methods share that see a whole set at once: `transduce`, features in, logits out.

`transduce(features, *, rounds=..., out=None)` learns from all rows before it answers any, and
leaves the adapter as it is. A method of the family "transductive" has nothing else: its verbs for
streams raise a TypeError that says so. A stream method may have it besides.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NoReturn

import array_api_compat
import numpy as np

from soba.adapt._arrays import Array, Batch
from soba.adapt.base import Adapter, whole


class Transduces(Adapter):
    """An adapter that can answer a whole set at once.

    A method writes `transduce` with a default of its own for `rounds`, which calls
    `_transduced`, and fills in `_answers`.
    """

    @abstractmethod
    def transduce(self, features: Array, *, rounds: int, out: Array | None = None) -> Array:
        """All rows at once: (n, d) -> (n, C) logits, in `out` if given; changes nothing."""

    @abstractmethod
    def _answers(self, batch: Batch, rounds: int) -> Array:
        """(n, C) logits of a set of one row at least, in any array library."""

    def _transduced(self, features: Array, rounds: int, out: Array | None) -> Array:
        """Check the input, answer it, and put the answers where they are wanted."""
        batch, rounds = self._read(features), whole(rounds, "rounds")
        if batch.single:
            raise ValueError(f"transduce takes a set, (n, {self.dim}) features, not one (d,) row")
        if out is not None:
            check_out(out, batch, (len(batch), self.n_classes))
        view = self._view()
        logits = view._answers(batch, rounds) if len(batch) else view._clip_logits(batch)[1]
        if isinstance(logits, np.ndarray) and not isinstance(batch.x, np.ndarray):
            logits = batch.xp.asarray(logits, device=batch.device)
        if out is None:
            return batch.xp.astype(logits, batch.x.dtype, copy=False)
        out[...] = logits
        return out


class TransductiveAdapter(Transduces):
    """An adapter that can do nothing but answer a whole set at once."""

    def adapt(self, features: Array, *, ids: Any = None) -> Array:
        self._refuse("adapt")

    def logits(self, features: Array) -> Array:
        self._refuse("logits")

    def probabilities(self, features: Array) -> Array:
        self._refuse("probabilities")

    def top_k(self, features: Array, k: int = 1) -> tuple[Array, Array]:
        self._refuse("top_k")

    def predict(self, features: Array, *, min_confidence: float = 0.0) -> Array:
        self._refuse("predict")

    def _logits(self, batch: Batch) -> Array:
        self._refuse("logits")

    def _try_out(self) -> Array:
        return np.zeros(1)  # it has learned nothing

    def _refuse(self, verb: str) -> NoReturn:
        raise TypeError(
            f"{self.name} has no {verb}: it sees a whole set at once and keeps nothing of it; "
            "call transduce(features)"
        )


def check_out(out: Array, batch: Batch, shape: tuple[int, int]) -> None:
    """Raise, before the work, if answers of this shape cannot be written into `out`."""
    if not array_api_compat.is_array_api_obj(out):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    if array_api_compat.array_namespace(out) is not batch.xp:
        raise TypeError(f"out is a {type(out).__name__}, and the features are of another library")
    if tuple(out.shape) != shape:
        raise ValueError(f"out must have shape {shape}, not {tuple(out.shape)}")
    if not batch.xp.isdtype(out.dtype, "real floating"):
        raise TypeError(f"out must be floating point, not {out.dtype}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError("out cannot be written to")
