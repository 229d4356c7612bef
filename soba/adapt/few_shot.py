"""What the few-shot methods share: labelled samples through `fit`, scoring afterwards."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from soba.adapt._arrays import (
    Array,
    Batch,
    clip_logits,
    read_batch,
    read_labels,
    to_host,
    unit_rows,
)
from soba.adapt.base import Adapter


class NotFittedError(ValueError, RuntimeError):
    """The method needs labelled samples first."""


class FewShotAdapter(Adapter):
    """An adapter that is fitted once on a few labelled samples and then only scores.

    Hyper-parameters that are None are searched on `val=(features, labels)`, data of its own,
    never the test set; without `val` they get the method's initial values. `tuned_on_` says
    which it was. `with_text` takes other prompts for the same classes in the same order: what was
    learned from labels is bound to them.
    """

    tuned_on_: str | None = None

    def fit(self, features: Array, labels: Any, val: tuple[Array, Any] | None = None) -> Self:
        """Learn from labelled features: (n, d), or (n, V, d) with V augmentations of each."""
        rows, targets = self._labelled(features, labels)
        present = np.bincount(targets, minlength=self.n_classes) > 0
        if not present.all():
            missing = np.flatnonzero(~present).tolist()
            listed = ", ".join(str(k) for k in missing[:10]) + (
                ", ..." if len(missing) > 10 else ""
            )
            raise ValueError(f"no labelled samples of {len(missing)} classes: {listed}")
        held_out = None if val is None else self._labelled(*val)
        if held_out is not None and len(held_out[1]) == 0:
            raise ValueError("val holds no samples")
        with self._lock:
            self._fit(rows, targets)
            self.tuned_on_ = self._tune(held_out)
        return self

    def _labelled(self, features: Array, labels: Any) -> tuple[np.ndarray, np.ndarray]:
        batch = read_batch(features, self.dim, normalise=False)
        targets = read_labels(labels, len(batch), self.n_classes)
        x = to_host(batch.x)
        return (unit_rows(x), targets) if x.ndim == 2 else self._join_views(x, targets)

    def _logits(self, batch: Batch) -> Array:
        if self.tuned_on_ is None:
            raise NotFittedError(f"{self.name} needs labelled samples: call fit first")
        features, logits = self._clip_logits(batch)
        return logits + self._score(batch, features)

    def _host_logits(self, rows: np.ndarray) -> tuple[Batch, np.ndarray]:
        """A batch of host features, and its CLIP logits."""
        batch = Batch(np, rows, False)
        return batch, clip_logits(batch, self._scaled_text)[1]

    def _try_out(self) -> Array:
        return np.zeros(1) if self.tuned_on_ is None else super()._try_out()

    def _reset(self) -> None:
        self.tuned_on_ = None

    def _take_over(self, other: Self) -> None:
        if other.tuned_on_ is None:
            return
        if other.n_classes != self.n_classes:
            raise ValueError(
                f"{self.name} was fitted on {other.n_classes} labelled classes: "
                f"fit it again for {self.n_classes}"
            )
        state = other.state()
        self._restore(state["arrays"], state["meta"])

    @abstractmethod
    def _join_views(self, x: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n, V, d) augmented samples -> the rows the method learns from, and their labels.

        Views come with the lengths that they were given with; rows must be of unit length.
        """

    @abstractmethod
    def _fit(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Learn from labelled unit rows."""

    @abstractmethod
    def _tune(self, val: tuple[np.ndarray, np.ndarray] | None) -> str:
        """Settle the hyper-parameters; returns "given", "initial values" or "validation"."""

    @abstractmethod
    def _score(self, batch: Batch, features: Array) -> Array:
        """(m, d) features -> (m, C) logits to add to CLIP's."""
