"""A view: what an adapter knew at one moment, to answer with and never to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from soba.adapt._arrays import Array

if TYPE_CHECKING:
    from soba.adapt.base import Adapter


class View:
    """An adapter's answers as they were when `Adapter.view` was called, for good.

    It has the verbs that only answer, and those that learn raise AttributeError. Threads may share
    it: it takes no lock, and waits for none. It costs a few references; methods that score from
    what changes in place (TDA's caches, the means of OGA and ADAPT) copy that, once for all views
    between two samples.

    Examples
    --------
    >>> import numpy as np
    >>> from soba import NCM
    >>> ncm = NCM(np.eye(2), logit_scale=10.0, refresh=1)
    >>> view = ncm.view()
    >>> logits = ncm.adapt(np.array([[0.8, 0.6], [0.6, 0.8]]))
    >>> view.n_seen, ncm.n_seen, view.logits(np.array([1.0, 0.0])).tolist()
    (0, 2, [10.0, 0.0])
    """

    __slots__ = ("_adapter", "_n_seen")

    def __init__(self, adapter: Adapter, n_seen: int = 0) -> None:
        self._adapter, self._n_seen = adapter, n_seen  # an adapter that nobody else has

    @property
    def n_seen(self) -> int:
        """How many samples it knows of; 0 of a method that does not learn from streams."""
        return self._n_seen

    @property
    def n_classes(self) -> int:
        """Number of classes C."""
        return self._adapter.n_classes

    def logits(self, features: Array) -> Array:
        """Logits (n, C)."""
        batch = self._adapter._read(features)
        return batch.unwrap(self._adapter._logits(batch))

    def probabilities(self, features: Array) -> Array:
        """Probabilities (n, C)."""
        batch = self._adapter._read(features)
        return batch.unwrap(self._adapter._chances(batch))

    def top_k(self, features: Array, k: int = 1) -> tuple[Array, Array]:
        """The k likeliest classes of each sample and their probabilities, (n, k) each."""
        if not 1 <= k <= self.n_classes:
            raise ValueError(f"k must be between 1 and the {self.n_classes} classes, not {k}")
        batch = self._adapter._read(features)
        xp, probs = batch.xp, self._adapter._chances(batch)
        indices = xp.argsort(-probs, axis=-1, stable=True)[:, :k]
        return batch.unwrap(indices), batch.unwrap(xp.take_along_axis(probs, indices, axis=-1))

    def predict(self, features: Array, *, min_confidence: float = 0.0) -> Array:
        """The likeliest class of each sample; -1 where it is less likely than `min_confidence`."""
        if not 0.0 <= min_confidence <= 1.0:
            raise ValueError(f"min_confidence must be a probability, not {min_confidence!r}")
        batch = self._adapter._read(features)
        xp, probs = batch.xp, self._adapter._chances(batch)
        classes = xp.argmax(probs, axis=-1)
        sure = xp.max(probs, axis=-1) >= min_confidence
        return batch.unwrap(xp.where(sure, classes, xp.full_like(classes, -1)))

    def explain(self, feature: Array) -> Any:
        """Where the answer for one sample comes from, by methods that can tell."""
        explain = getattr(self._adapter, "explain", None)
        if explain is None:
            raise TypeError(f"{self._adapter.name} cannot explain its answers")
        return explain(feature)

    def __repr__(self) -> str:
        return f"<view of {self._adapter!r} after {self.n_seen} samples>"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a view has no {name!r}: it answers and never changes")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a view cannot be pickled: send the adapter, or its copy()")
