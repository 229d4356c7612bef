"""A method of somebody else's: one file outside the package, with its card."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from soba import Card
from soba.adapt.queue_adapter import PrototypeAdapter


class ClassMedians(PrototypeAdapter):
    """Nearest class median over the entropy queue: one odd sample moves it less than a mean."""

    card: ClassVar[Card] = Card(
        "medians", title="Class medians", colour="#5a7a00", provenance="an idea of mine"
    )

    def __init__(
        self, text_features, *, logit_scale=100.0, capacity=16, alpha=15.0, refresh="growth"
    ):
        super().__init__(text_features, logit_scale=logit_scale)
        self.capacity, self.alpha, self.refresh_rule = capacity, alpha, refresh
        self.total = self.max_gap = None
        self._reset()

    def _statistics(self):
        items = self.queue.items()
        seen = np.unique(items.labels)
        if len(seen) < 2:
            return None
        medians = [np.median(items.features[items.labels == label], axis=0) for label in seen]
        return self._spread(seen, np.stack(medians))

    def _score(self, batch, features):
        return self._linear(batch, features * self.alpha)
