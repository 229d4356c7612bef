"""TPT: one gradient step on the prompt for each image (NeurIPS 2022).

Of 64 views the 6 surest under the initial prompt; AdamW lowers the entropy of their mean
probability; the image itself (view 0) is scored with the tuned prompt; then all is forgotten.
The official code runs under AMP with a gradient scaler of 1000 and needs over 16 GB for 1,000
classes. Here: float32 unless the encoder says autocast, no scaler, memory bounded by chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from soba.adapt._arrays import Array, Batch
from soba.adapt.base import positive, whole
from soba.adapt.card import AUGMIX, CROPS, Card, PaperSettings, PaperViews
from soba.encode.encoder import Encoder
from soba.tune._base import TEMPLATE, PromptTuner, marginal_entropy, surest
from soba.tune._torch import gradients, plain, torch


class TPT(PromptTuner):
    """Test-time prompt tuning, anew for each image: nothing is kept, so `adapt` is `logits`.

    Parameters
    ----------
    steps, learning_rate
        Of AdamW on the context vectors.
    selection
        Share of the views whose mean entropy is lowered: 0.1 of 64 are 6.

    Notes
    -----
    `steps` + 1 passes of all C prompts through the text tower and `steps` back, a sample.

    With an encoder at hand:

        tuner = TPT(encoder, ["dog", "cat"], "a photo of a {}.")
        logits = tuner.adapt(views)  # (n, 64, d) -> (n, 2)
    """

    card: ClassVar[Card] = Card(
        "tpt",
        title="TPT",
        colour="#c70a39",
        family="tuner",
        needs={"views", "gradients"},
        min_views=2,
        episodic=True,
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(CROPS, CROPS, AUGMIX)),
    )

    def __init__(
        self,
        encoder: Encoder,
        class_names: Sequence[str],
        template: str = TEMPLATE,
        *,
        steps: int = 1,
        learning_rate: float = 5e-3,
        selection: float = 0.1,
    ) -> None:
        super().__init__(encoder, class_names, template)
        self.steps = whole(steps, "steps")
        self.learning_rate = positive(learning_rate, "learning_rate")
        self.selection = share(selection, "selection")

    @gradients()
    def tune(self, views: Any) -> Any:
        """The context vectors after the steps on one sample's (V, d) views, view 0 the image."""
        views = plain(views)
        context = self._prompts.initial.clone().requires_grad_()
        optimiser = torch.optim.AdamW([context], lr=self.learning_rate)
        rows = None
        for _ in range(self.steps):
            logits = self._cosine_logits(views, self._prompts.features(context))
            if rows is None:  # the first step decides for all
                rows = self._choose(logits.detach())
            optimiser.zero_grad()
            marginal_entropy(logits[rows]).backward()
            optimiser.step()
        return context.detach()

    def _choose(self, logits: Any) -> Any:
        """Rows of the views to learn from."""
        return surest(logits, int(self.selection * len(logits)))

    def _check_views(self, count: int) -> None:
        if int(self.selection * count) < 1:
            raise ValueError(
                f"{self.name} tunes on {self.selection} of the views, none of {count}: "
                "give features of shape (n, V, d), 64 views each in the paper"
            )

    def _logits(self, batch: Batch) -> Array:
        views = self._views(batch)
        self._check_views(views.shape[1])
        rows = []
        for sample in views:
            context = self.tune(sample)
            with torch.no_grad():
                rows.append(self._cosine_logits(sample[0], self._prompts.features(context)))
        return self._back(batch, rows)


def share(value: float, name: str) -> float:
    """`value` as a float, if it is a share: above 0, 1 at most.

    Examples
    --------
    >>> share(0.1, "selection")
    0.1
    """
    if positive(value, name) > 1:
        raise ValueError(f"{name} must be a share of 1, not {value!r}")
    return float(value)
