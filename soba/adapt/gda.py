"""GDA: Gaussian discriminant analysis on few-shot features, added to CLIP's logits.

Paper: A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation (ICLR 2024). Shared
covariance with an empirical-Bayes ridge precision A = d ((n-1) S + tr(S) I)^-1, weights A mu_k and
bias ln(1/C) - mu_k A mu_k / 2. The official code picks alpha on the validation split, and for
ImageNet on the test set; here only what is passed as `val` is ever searched.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from soba.adapt._arrays import Array, Batch, unit_rows
from soba.adapt.base import at_least_zero
from soba.adapt.card import Card
from soba.adapt.few_shot import FewShotAdapter

ALPHAS = tuple(10.0**power for power in range(-4, 3))


class GDA(FewShotAdapter):
    """Few-shot Gaussian discriminant analysis.

    Parameters
    ----------
    alpha
        Weight against CLIP; None: the best of 1e-4, 1e-3, ..., 1e2 on `val`, or 1 without it.

    Notes
    -----
    O(C d) a sample, C d floats; `fit` on n samples costs O(n d^2 + d^3).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(40) % 2
    >>> shots = np.eye(8)[labels] + 0.3 * rng.normal(size=(40, 8))
    >>> gda = GDA(rng.normal(size=(2, 8)), logit_scale=8.0, alpha=10.0).fit(shots, labels)
    >>> gda.logits(np.eye(8)[:2]).argmax(axis=1).tolist()
    [0, 1]
    """

    card: ClassVar[Card] = Card(
        "gda",
        title="GDA",
        colour="#806a00",
        family="few-shot",
        needs={"features", "labels"},
        provenance="official algorithm",
    )

    def __init__(
        self, text_features: Array, *, logit_scale: float = 100.0, alpha: float | None = None
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.alpha = None if alpha is None else at_least_zero(alpha, "alpha")

    def _join_views(self, x: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Every augmentation is a unit sample of its own, as in the official code.
        return unit_rows(x).reshape(-1, self.dim), np.repeat(targets, x.shape[1])

    def _fit(self, rows: np.ndarray, targets: np.ndarray) -> None:
        counts = np.bincount(targets, minlength=self.n_classes)
        means = np.zeros((self.n_classes, self.dim))
        np.add.at(means, targets, rows)
        means /= counts[:, None]
        residuals = rows - means[targets]
        covariance = residuals.T @ residuals / max(len(rows) - 1, 1)
        if not np.trace(covariance) > 0.0:
            raise ValueError("the labelled samples have no scatter within their classes")
        ridge = (len(rows) - 1) * covariance + np.trace(covariance) * np.eye(self.dim)
        weights = self.dim * np.linalg.solve(ridge, means.T).T
        self._weights = weights.astype(np.float32, order="C")
        bias = -np.log(self.n_classes) - 0.5 * (weights * means).sum(axis=1)
        self._bias = bias.astype(np.float32)

    def _tune(self, val: tuple[np.ndarray, np.ndarray] | None) -> str:
        self.alpha_ = 1.0 if self.alpha is None else self.alpha
        if self.alpha is not None or val is None:
            return "given" if self.alpha is not None else "initial values"
        batch, clip = self._host_logits(val[0])
        likelihood = self._likelihood(batch, val[0])
        hits = [((clip + a * likelihood).argmax(axis=1) == val[1]).sum() for a in ALPHAS]
        self.alpha_ = ALPHAS[int(np.argmax(hits))]
        return "validation"

    def _likelihood(self, batch: Batch, features: Array) -> Array:
        weights = self._mirror("weights", self._weights, batch)
        return features @ weights.T + self._mirror("bias", self._bias, batch)

    def _score(self, batch: Batch, features: Array) -> Array:
        return self.alpha_ * self._likelihood(batch, features)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {} if self.tuned_on_ is None else {"weights": self._weights, "bias": self._bias}

    def _meta(self) -> dict[str, Any]:
        if self.tuned_on_ is None:
            return {}
        return {"tuned_on": self.tuned_on_, "alpha": self.alpha_}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        self.tuned_on_ = meta.get("tuned_on")
        if self.tuned_on_ is not None:
            self.alpha_ = meta["alpha"]
            self._weights, self._bias = arrays["weights"], arrays["bias"]
