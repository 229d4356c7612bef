"""Zero-shot CLIP: the scaled cosine between image and text (Radford et al., ICML 2021).

Learns nothing. The control that every other method is compared with, on the same prompts. Of
several views it scores the first alone, the image as it is: what the others gain from views is
measured by the control beside it, `clip+views`.
"""

from __future__ import annotations

from typing import ClassVar

from soba.adapt._arrays import Array, Batch
from soba.adapt.base import Adapter
from soba.adapt.card import ONE_VIEW, Card, PaperSettings, PaperViews


class ZeroShot(Adapter):
    """Plain CLIP, with the verbs of an adapter.

    O(C d) a sample, no state.

    Examples
    --------
    >>> import numpy as np
    >>> clip = ZeroShot(np.eye(2), logit_scale=10.0)
    >>> clip.adapt(np.array([3.0, 4.0])).tolist()
    [6.0, 8.0]
    """

    card: ClassVar[Card] = Card(
        "zero-shot",
        title="zero-shot",
        colour="#1c2430",
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(ONE_VIEW, ONE_VIEW, ONE_VIEW)),
    )

    def _logits(self, batch: Batch) -> Array:
        x = batch.x[:, 0, :] if batch.views else batch.x
        return x @ self._mirror("text", self._scaled_text, batch).T
