"""Tip-Adapter: a fixed cache of few-shot features that votes for their labels.

Paper: Tip-Adapter (ECCV 2022). logits = z + alpha * exp(-beta (1 - f K^T)) onehot(labels). The
official code searches alpha and beta on the validation split with ranges of its own for every
dataset (tip_adapter.csv), and for ImageNet on the test set; here only what is passed as
`val` is ever searched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, unit_rows
from soba.adapt.base import at_least_zero, positive
from soba.adapt.card import Card, PaperSettings
from soba.adapt.few_shot import FewShotAdapter

_STEPS = {"beta": 200, "alpha": 20}  # of the official search, from 0.1 up to the range's end


class TipAdapter(FewShotAdapter):
    """Few-shot cache without training.

    Parameters
    ----------
    alpha, beta
        Weight and sharpness of the cache. None: searched on `val`, or the official initial
        values, 1.17 and 1, without it.
    beta_range, alpha_range
        Ends of the search, exclusive; the defaults are ImageNet's.

    Notes
    -----
    Of (n, V, d) samples the key is the mean of the V augmentations, normalised only then, as in the
    official code: a longer feature weighs more. Feature files that hold unit rows have lost the
    lengths, and give the mean of unit rows.

    O(m d + m C) a sample with m labelled samples, m d floats.

    Examples
    --------
    >>> tip = TipAdapter(np.eye(2), logit_scale=10.0, alpha=1.0, beta=1.0)
    >>> tip = tip.fit(np.array([[0.0, 1.0], [1.0, 0.0]]), [0, 1])  # labels against the text
    >>> tip.logits(np.array([1.0, 0.0])).round(3).tolist()
    [10.368, 1.0]
    """

    card: ClassVar[Card] = Card(
        "tip-adapter",
        title="Tip-Adapter",
        colour="#bf884b",
        family="few-shot",
        needs={"features", "labels"},
        provenance="official algorithm",
        paper=PaperSettings(search=Path(__file__).with_name("tip_adapter.csv")),
    )

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        alpha: float | None = None,
        beta: float | None = None,
        beta_range: float = 7.0,
        alpha_range: float = 3.0,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.alpha = None if alpha is None else at_least_zero(alpha, "alpha")
        self.beta = None if beta is None else at_least_zero(beta, "beta")
        self.beta_range = positive(beta_range, "beta_range")
        self.alpha_range = positive(alpha_range, "alpha_range")

    def _join_views(self, x: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean = x.mean(axis=1, dtype=np.float64)  # of large values a float32 sum overflows
        return unit_rows(mean, "mean of the augmentations"), targets

    def _fit(self, rows: np.ndarray, targets: np.ndarray) -> None:
        order = np.argsort(targets, kind="stable")  # the cache does not depend on arrival order
        self._keys, self._labels = rows[order], targets[order]
        self._votes = np.eye(self.n_classes, dtype=np.float32)[self._labels]

    def _tune(self, val: tuple[np.ndarray, np.ndarray] | None) -> str:
        self.alpha_ = 1.17 if self.alpha is None else self.alpha
        self.beta_ = 1.0 if self.beta is None else self.beta
        if self.alpha is not None and self.beta is not None:
            return "given"
        if val is None:
            return "initial values"
        _, clip = self._host_logits(val[0])
        affinity = val[0] @ self._keys.T
        alphas = _grid(self.alpha, self.alpha_range, "alpha")
        most = -1
        for beta in _grid(self.beta, self.beta_range, "beta"):
            votes = np.exp(np.float32(beta) * (affinity - 1.0)) @ self._votes
            for alpha in alphas:
                hits = int(((clip + np.float32(alpha) * votes).argmax(axis=1) == val[1]).sum())
                if hits > most:  # strictly: the first best stays
                    most, self.alpha_, self.beta_ = hits, float(alpha), float(beta)
        return "validation"

    def _score(self, batch: Batch, features: Array) -> Array:
        keys = self._mirror("keys", self._keys, batch)
        votes = self._mirror("votes", self._votes, batch)
        affinity = features @ keys.T
        return self.alpha_ * (batch.xp.exp(self.beta_ * (affinity - 1.0)) @ votes)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {} if self.tuned_on_ is None else {"keys": self._keys, "labels": self._labels}

    def _meta(self) -> dict[str, Any]:
        if self.tuned_on_ is None:
            return {}
        return {"tuned_on": self.tuned_on_, "alpha": self.alpha_, "beta": self.beta_}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        self.tuned_on_ = meta.get("tuned_on")
        if self.tuned_on_ is not None:
            self.alpha_, self.beta_ = meta["alpha"], meta["beta"]
            self._fit(arrays["keys"], arrays["labels"])


def _grid(given: float | None, end: float, name: str) -> np.ndarray:
    """The official search grid, or the one value that was given."""
    if given is not None:
        return np.array([given])
    return 0.1 + np.arange(_STEPS[name]) * (end - 0.1) / _STEPS[name]
