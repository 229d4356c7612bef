"""CoCoOp: a context that a small network shifts for each image (CVPR 2022).

The network, Linear(d, d/16), ReLU, Linear(d/16, w), sees the normalised image feature and its
output is added to every context vector; so each image costs a pass of all classes through the
text tower. As the official code: 10 epochs, one image at a time, context from the template's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from soba.adapt._arrays import Array, Batch
from soba.adapt.card import Card
from soba.encode.encoder import Encoder
from soba.tune._base import TEMPLATE
from soba.tune._torch import torch
from soba.tune.coop import CoOp


class CoCoOp(CoOp):
    """Conditional context optimisation: `fit(features, labels)`, then `with_classes`.

    Parameters, and the view that is scored, are those of `CoOp`.
    """

    card: ClassVar[Card] = Card(
        "cocoop",
        title="CoCoOp",
        colour="#7719ff",
        family="tuner",
        needs={"features", "labels", "gradients"},
        provenance="official algorithm",
        paper=CoOp.card.paper,
    )

    def __init__(
        self,
        encoder: Encoder,
        class_names: Sequence[str],
        template: str = TEMPLATE,
        *,
        context: int | None = None,
        epochs: int = 10,
        batch_size: int = 1,
        learning_rate: float = 2e-3,
        warm_up: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(
            encoder,
            class_names,
            template,
            context=context,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            warm_up=warm_up,
            seed=seed,
        )

    def _beginning(self) -> dict[str, Any]:
        random = torch.Generator().manual_seed(self.seed + 1)
        hidden = max(1, self.dim // 16)

        def uniform(fan_in: int, *shape: int) -> Any:  # as torch initialises a linear layer
            bound = fan_in**-0.5
            values = (2 * torch.rand(*shape, generator=random) - 1) * bound
            return values.to(self.encoder.device)

        return super()._beginning() | {
            "weight_in": uniform(self.dim, hidden, self.dim),
            "bias_in": uniform(self.dim, hidden),
            "weight_out": uniform(hidden, self._prompts.width, hidden),
            "bias_out": uniform(hidden, self._prompts.width),
        }

    def _batch_logits(self, learned: dict[str, Any], rows: Any) -> Any:
        hidden = torch.relu(rows @ learned["weight_in"].T + learned["bias_in"])
        shift = hidden @ learned["weight_out"].T + learned["bias_out"]  # (n, w)
        text = self._prompts.features(learned["context"] + shift[:, None, :])  # (n, C, d)
        return self._cosine_logits(rows[:, None, :], text)[:, 0]

    def _keep(self, learned: dict[str, Any]) -> None:
        self._learned = learned  # the text is another one for each image

    def _logits(self, batch: Batch) -> Array:
        self._require_fit()
        images = self._views(batch)[:, 0]
        at_a_time = max(1, 4096 // self.n_classes)
        with torch.no_grad():
            rows = [
                row
                for part in images.split(at_a_time)
                if len(part)
                for row in self._batch_logits(self._learned, part)
            ]
        return self._back(batch, rows)
