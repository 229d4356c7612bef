"""DiffTPT: TPT on views that a diffusion model has drawn as well (ICCV 2023).

Original, 64 augmented and 63 generated views. The paper filters by the cosine to the original's
feature; the official code takes the cosine of the LOGITS, and so do we: of all but the original
the 0.8 most similar, then, with it, the 0.3 surest; 4 steps. The authors' generated images were
not kept and their generator exists for one set only, so generated views come from the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from soba.adapt.base import whole
from soba.adapt.card import Card
from soba.encode.encoder import Encoder
from soba.tune._base import TEMPLATE, surest
from soba.tune._torch import torch
from soba.tune.tpt import TPT, share


class DiffTPT(TPT):
    """Test-time prompt tuning with generated views.

    Parameters
    ----------
    generated
        How many of each sample's views, the last ones, are features of generated images: 63 for
        features of shape (n, 1 + 64 + 63, d).
    fallback
        Run without generated views. `used_` then says "views only", for the record.
    similar
        Share of the views kept for the cosine of their logits with the original's.
    selection
        Share of the surest among what is left.
    """

    card: ClassVar[Card] = Card(
        "difftpt",
        title="DiffTPT",
        colour="#79364c",
        family="tuner",
        needs={"views", "generated views", "gradients"},
        min_views=2,
        episodic=True,
        provenance="official algorithm",
        paper=TPT.card.paper,
    )

    def __init__(
        self,
        encoder: Encoder,
        class_names: Sequence[str],
        template: str = TEMPLATE,
        *,
        generated: int = 0,
        fallback: bool = False,
        steps: int = 4,
        learning_rate: float = 5e-3,
        similar: float = 0.8,
        selection: float = 0.3,
    ) -> None:
        super().__init__(
            encoder,
            class_names,
            template,
            steps=steps,
            learning_rate=learning_rate,
            selection=selection,
        )
        self.generated = whole(generated, "generated", least=0)
        self.fallback = bool(fallback)
        self.similar = share(similar, "similar")
        if self.generated == 0 and not self.fallback:
            raise ValueError(
                "difftpt needs views from a diffusion model: put their features behind the other "
                "views and say how many with generated=, or run without them with fallback=True"
            )

    @property
    def used_(self) -> str:
        """What the views are, for the record."""
        return f"{self.generated} generated views" if self.generated else "views only"

    def _choose(self, logits: Any) -> Any:
        alike = torch.cosine_similarity(logits[1:], logits[:1])
        order = alike.argsort(descending=True, stable=True)[: int(self.similar * len(alike))]
        rows = torch.cat([order.new_zeros(1), order + 1])
        return rows[surest(logits[rows], int(self.selection * len(rows)))]

    def _check_views(self, count: int) -> None:
        if count < self.generated + 2:
            raise ValueError(
                f"{count} views cannot be an original, augmented views "
                f"and {self.generated} generated ones"
            )
        kept = 1 + int(self.similar * (count - 1))
        if int(self.selection * kept) < 1:
            raise ValueError(f"difftpt's filters leave none of {count} views")
