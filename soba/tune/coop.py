"""CoOp: context vectors learned from a few labelled samples (IJCV 2022).

One context for all classes, in front of the class name. The official code trains on image crops
through the frozen image tower; here on cached features, of several augmentations where there are
any. It trains 50 epochs on ImageNet and up to 200 elsewhere; that number is a parameter. Only the
context is kept, so it transfers to any other class names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._arrays import Array, Batch, unit_rows
from soba.adapt.base import positive, whole
from soba.adapt.card import ONE_VIEW, Card, PaperSettings, PaperViews
from soba.adapt.few_shot import FewShotAdapter, NotFittedError
from soba.encode.encoder import Encoder
from soba.tune._base import TEMPLATE, PromptTuner, check_shapes
from soba.tune._checkpoint import Checkpoint
from soba.tune._torch import gradients, torch
from soba.tune._training import train


class CoOp(PromptTuner, FewShotAdapter):
    """Context optimisation: `fit(features, labels)`, then `with_classes` for other sets.

    Parameters
    ----------
    context
        How many random vectors, 16 in the paper's main runs; None: as many as the template's
        opening words have tokens, beginning with their embeddings.
    epochs, batch_size, learning_rate, warm_up
        Of SGD with momentum; 1e-5 in the first `warm_up` epochs, then a cosine. Samples that fill
        no batch are left out of an epoch, others each time; fewer than one batch are all used.
    seed
        Of the random vectors and the order of samples.

    Notes
    -----
    The last epoch counts; `val` is not looked at. Of views the first one, the image itself, is
    scored, as zero-shot CLIP does; training draws from all.

    With an encoder at hand:

        tuner = CoOp(encoder, imagenet_names).fit(features, labels)
        logits = tuner.with_classes(pet_names).logits(pet_features)
    """

    card: ClassVar[Card] = Card(
        "coop",
        title="CoOp",
        colour="#642e91",
        family="tuner",
        needs={"features", "labels", "gradients"},
        provenance="official algorithm",
        paper=PaperSettings(views=PaperViews(ONE_VIEW, ONE_VIEW, ONE_VIEW)),
    )
    _checkpoint: str | os.PathLike[str] | None = None

    def __init__(
        self,
        encoder: Encoder,
        class_names: Sequence[str],
        template: str = TEMPLATE,
        *,
        context: int | None = None,
        epochs: int = 50,
        batch_size: int = 32,
        learning_rate: float = 2e-3,
        warm_up: int = 1,
        seed: int = 0,
    ) -> None:
        self.context = None if context is None else whole(context, "context")
        super().__init__(encoder, class_names, template)
        self.epochs = whole(epochs, "epochs")
        self.batch_size = whole(batch_size, "batch_size")
        self.learning_rate = positive(learning_rate, "learning_rate")
        self.warm_up = whole(warm_up, "warm_up", least=0)
        self.seed = whole(seed, "seed", least=0)

    def _places(self) -> int | None:
        return self.context

    def _beginning(self) -> dict[str, Any]:
        """Name -> tensor of what is learned, before it is."""
        if self.context is None:
            return {"context": self._prompts.initial.clone()}
        random = torch.Generator().manual_seed(self.seed)
        vectors = torch.randn(self.context, self._prompts.width, generator=random)
        return {"context": 0.02 * vectors.to(self.encoder.device)}

    def _batch_logits(self, learned: dict[str, Any], rows: Any) -> Any:
        """(n, d) features -> (n, C) logits under what is learned."""
        return self._cosine_logits(rows, self._prompts.features(learned["context"]))

    def fit(
        self,
        features: Array,
        labels: Any,
        val: tuple[Array, Any] | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn from labelled features: (n, d), or (n, V, d) with V augmentations of each.

        `checkpoint` names a file that keeps what each epoch has learned: the same call, after a
        kill, goes on from there, and one that was done trains nothing. The file of a training on
        other samples, classes, weights or settings is refused.
        """
        with self._lock:
            self._checkpoint = checkpoint
            try:
                return super().fit(features, labels, val)
            finally:
                self._checkpoint = None

    @gradients()
    def _fit(self, rows: np.ndarray, targets: np.ndarray) -> None:
        learned = {name: t.requires_grad_() for name, t in self._beginning().items()}
        self.losses_ = train(
            list(learned.values()),
            lambda batch: self._batch_logits(learned, batch),
            rows,
            targets,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            warm_up=self.warm_up,
            seed=self.seed,
            checkpoint=self._checkpoint_of(rows, targets),
        )
        self._keep({name: tensor.detach() for name, tensor in learned.items()})

    def _checkpoint_of(self, rows: np.ndarray, targets: np.ndarray) -> Checkpoint | None:
        if self._checkpoint is None:
            return None
        run = {
            "method": self.name,
            "encoder": self.encoder.fingerprint,
            "classes": self.class_names,
            "template": self.template,
            "settings": self.params,
        }
        return Checkpoint(self._checkpoint, run, rows, targets)

    def _keep(self, learned: dict[str, Any]) -> None:
        self._learned = learned
        with torch.no_grad():
            text = self._prompts.features(learned["context"])
        self._tuned_text = (self.logit_scale * text).cpu().numpy()

    def _logits(self, batch: Batch) -> Array:
        self._require_fit()
        images = batch.x[:, 0, :] if batch.views else batch.x
        return images @ self._mirror("tuned text", self._tuned_text, batch).T

    def _require_fit(self) -> None:
        if self.tuned_on_ is None:
            raise NotFittedError(f"{self.name} needs labelled samples: call fit first")

    # What FewShotAdapter asks for ---------------------------------------------------------------

    def _join_views(self, x: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return unit_rows(x), targets

    def _tune(self, val: tuple[np.ndarray, np.ndarray] | None) -> str:
        return "given"

    def _score(self, batch: Batch, features: Array) -> Array:
        raise NotImplementedError  # `_logits` replaces CLIP's logits, it adds nothing to them

    def _take_over(self, other: Self) -> None:
        if other.tuned_on_ is not None:
            self._restore(other._arrays(), other._meta())

    def _arrays(self) -> dict[str, np.ndarray]:
        if self.tuned_on_ is None:
            return {}
        return {name: tensor.cpu().numpy() for name, tensor in self._learned.items()}

    def _meta(self) -> dict[str, Any]:
        return {} if self.tuned_on_ is None else {"tuned_on": self.tuned_on_}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        self.tuned_on_ = meta.get("tuned_on")
        if self.tuned_on_ is not None:
            begin = self._beginning()
            check_shapes(arrays, {name: tensor.shape for name, tensor in begin.items()})
            self._keep({n: torch.as_tensor(arrays[n]).to(self.encoder.device) for n in begin})
