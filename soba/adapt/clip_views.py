"""CLIP + views: the mean logits of the surest views, the control of every method that has views.

TDA's loader (CVPR 2024) hands its caches the 6 surest of 64 views of an image, and that alone is
worth several points on hard sets: what a method gains on views is to be measured against this
row, not against plain CLIP. No paper names it; the rule is the one all queue methods go through.
"""

from __future__ import annotations

from typing import ClassVar

from soba.adapt._arrays import Array, Batch
from soba.adapt.base import Adapter
from soba.adapt.card import Card


class ClipViews(Adapter):
    """Plain CLIP on the surest tenth of the views.

    Of V views the max(1, V // 10) of lowest entropy; their logits are averaged. O(V C d) an
    image, no state.

    Examples
    --------
    >>> import numpy as np
    >>> views = np.array([[[0.6, 0.8], [0.0, 1.0], [0.8, 0.6]]])  # the second is the surest
    >>> ClipViews(np.eye(2), logit_scale=10.0).adapt(views).tolist()
    [[0.0, 10.0]]
    """

    card: ClassVar[Card] = Card(
        "clip+views",
        title="CLIP + views",
        colour="#8a959d",
        family="episodic",
        needs={"views"},
        min_views=2,
        provenance="control",
    )

    def _logits(self, batch: Batch) -> Array:
        return self._clip_logits(batch)[1]
