"""Tip-Adapter-F: Tip-Adapter whose cached keys are trained (ECCV 2022).

The keys become a linear layer: AdamW (1e-3, eps 1e-4), batches of 256, a cosine over all steps,
20 epochs (100 for EuroSAT), with the initial alpha and beta; then these are searched. The official
code picks the best epoch on the TEST set and reports the better of two test scores; here the last
epoch counts, and only what is passed as `val` is ever searched. Needs torch to fit, not to score.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._arrays import Array, unit_rows
from soba.adapt.base import positive, whole
from soba.adapt.card import Card
from soba.adapt.few_shot import NotFittedError
from soba.adapt.tip_adapter import TipAdapter


class TipAdapterF(TipAdapter):
    """Few-shot cache with trained keys.

    Parameters
    ----------
    epochs, batch_size, learning_rate
        Of AdamW on the keys.
    seed
        Of the order of samples.

    Notes
    -----
    The others are those of `TipAdapter`. Of (n, V, d) samples the keys begin as Tip-Adapter
    makes them, the mean of the V augmentations as they are; every epoch trains on one of these,
    drawn at random and of unit length.

    Examples
    --------
    >>> shots = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> tip = TipAdapterF(np.eye(2), logit_scale=10.0).fit(shots, [0, 1])
    >>> tip.losses_[-1] < tip.losses_[0]
    True
    """

    card: ClassVar[Card] = Card(
        "tip-adapter-f",
        title="Tip-Adapter-F",
        colour="#8a240e",
        family="few-shot",
        needs={"features", "labels", "gradients"},
        provenance="official algorithm",
        paper=TipAdapter.card.paper,
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
        epochs: int = 20,
        batch_size: int = 256,
        learning_rate: float = 1e-3,
        seed: int = 0,
    ) -> None:
        super().__init__(
            text_features,
            logit_scale=logit_scale,
            alpha=alpha,
            beta=beta,
            beta_range=beta_range,
            alpha_range=alpha_range,
        )
        self.epochs = whole(epochs, "epochs")
        self.batch_size = whole(batch_size, "batch_size")
        self.learning_rate = positive(learning_rate, "learning_rate")
        self.seed = whole(seed, "seed", least=0)

    def restricted(self, classes: Any) -> Self:
        """The fitted cache for some of its classes, in this order: ImageNet's for -A or -R.

        Keys of the other classes vote for none of these and are left out; see
        `soba.tune.classes.match_classes` for the indices.
        """
        columns = np.asarray(classes, np.int64)
        twin = type(self)(self.text_features[columns], **self.params)
        if self.tuned_on_ is not None:
            place = np.full(self.n_classes, -1, np.int64)
            place[columns] = np.arange(len(columns))
            kept = place[self._labels] >= 0
            arrays = {"keys": self._keys[kept], "labels": place[self._labels[kept]]}
            twin._restore(arrays, self._meta())
        return twin

    def search(self, features: Array, labels: Any) -> Self:
        """Search alpha and beta on labelled validation samples; the trained keys stay."""
        if self.tuned_on_ is None:
            raise NotFittedError(f"{self.name} needs labelled samples: call fit first")
        labelled = self._labelled(features, labels)
        with self._lock:
            self.tuned_on_ = self._tune(labelled)
        return self

    def _join_views(self, x: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x, targets  # kept apart: training draws from them

    def _fit(self, rows: np.ndarray, targets: np.ndarray) -> None:
        means, views = rows, rows[:, None]
        if rows.ndim == 3:
            means, views = super()._join_views(rows, targets)[0], unit_rows(rows)
        super()._fit(means, targets)
        self._train(views[np.argsort(targets, kind="stable")])

    def _tune(self, val: tuple[np.ndarray, np.ndarray] | None) -> str:
        if val is not None and val[0].ndim == 3:
            val = super()._join_views(*val)
        return super()._tune(val)

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        self.tuned_on_ = meta.get("tuned_on")
        if self.tuned_on_ is not None:
            self.alpha_, self.beta_ = meta["alpha"], meta["beta"]
            super()._fit(arrays["keys"], arrays["labels"])

    def _train(self, views: np.ndarray) -> None:
        """Move the keys so that they classify their own samples, (m, V, d), better."""
        from soba.tune._torch import torch

        alpha = 1.17 if self.alpha is None else self.alpha
        beta = 1.0 if self.beta is None else self.beta
        samples, votes = torch.asarray(views), torch.asarray(self._votes)
        targets, text = torch.asarray(self._labels), torch.asarray(self._scaled_text)
        keys = torch.tensor(self._keys, requires_grad=True)
        random = torch.Generator().manual_seed(self.seed)
        optimiser = torch.optim.AdamW([keys], lr=self.learning_rate, eps=1e-4)
        steps = self.epochs * math.ceil(len(samples) / self.batch_size)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        self.losses_ = []  # mean of each epoch
        for _ in range(self.epochs):
            total = 0.0
            for rows in torch.randperm(len(samples), generator=random).split(self.batch_size):
                drawn = torch.randint(samples.shape[1], (len(rows),), generator=random)
                x = samples[rows, drawn]
                cache = torch.exp(beta * (x @ keys.T - 1.0)) @ votes
                logits = x @ text.T + alpha * cache
                loss = torch.nn.functional.cross_entropy(logits, targets[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                total += float(loss.detach()) * len(rows)
            self.losses_.append(total / len(samples))
        self._keys = keys.detach().numpy()
