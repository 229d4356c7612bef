"""What the prompt-tuning methods share: built from an encoder and class names, scored as adapters.

Only the text is tuned, so images come as features, cached or fresh: (n, d), or (n, V, d) views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from soba.adapt._arrays import Array, Batch, like
from soba.adapt.base import Adapter
from soba.encode.encoder import Encoder
from soba.tune._prompts import Prompts
from soba.tune._torch import torch

TEMPLATE = "a photo of a {}."


class PromptTuner(Adapter):
    """An adapter whose text features are tuned through the text tower.

    Parameters
    ----------
    encoder
        One with a `text_tower`: gradients flow through it to the context vectors. Its weights
        never change. Image features must come from the same encoder.
    class_names
        In the order of the labels; underscores become spaces.
    template
        One prompt with `{}` for the class name; the words before it are what is tuned.

    Notes
    -----
    `text_features` are the zero-shot ones of the template, `logit_scale` is the encoder's.
    """

    def __init__(
        self, encoder: Encoder, class_names: Sequence[str], template: str = TEMPLATE
    ) -> None:
        if not isinstance(encoder, Encoder):
            raise TypeError(
                f"{self.name} needs gradients through a text tower: "
                f"build it from an encoder, not {type(encoder).__name__}"
            )
        if isinstance(class_names, str) or not all(isinstance(n, str) for n in class_names):
            raise TypeError("class_names must be a list of strings")
        if not class_names:
            raise ValueError("class_names is empty")
        if template.count("{}") != 1:
            raise ValueError(f"template {template!r} must have one {{}} for the class name")
        self.encoder = encoder
        self.class_names = tuple(name.replace("_", " ") for name in class_names)
        self.template = template
        sentences = [template.replace("{}", name) for name in self.class_names]
        super().__init__(encoder.encode_texts(sentences), logit_scale=encoder.logit_scale)
        self._prompts = Prompts(encoder, self.class_names, template, context_tokens=self._places())

    def with_classes(self, class_names: Sequence[str]) -> Self:
        """What was learned, under other class names; what is bound to the old ones starts over."""
        twin = type(self)(self.encoder, class_names, self.template, **self.params)
        with self._lock:
            twin._take_over(self)
        return twin

    def with_text(self, text_features: Array) -> Self:
        """Not for methods that make their text themselves: see `with_classes`."""
        raise TypeError(f"{self.name} makes its text from class names: use with_classes")

    # State: what the base does, with the encoder beside it --------------------------------------

    def copy(self) -> Self:
        """An independent adapter in the same state, on the same encoder."""
        return type(self).from_state(self.state(), self.encoder)

    def state(self) -> dict[str, Any]:
        """All there is to know, but for the encoder's weights: of these the fingerprint."""
        state = super().state()
        state["meta"] |= {
            "class_names": list(self.class_names),
            "template": self.template,
            "fingerprint": self.encoder.fingerprint,
        }
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any], encoder: Encoder | None = None) -> Self:
        """The adapter that `state` described, on the encoder it was made with."""
        meta, arrays = cls._checked_state(state)
        if encoder is None:
            raise ValueError(f"{cls.card.name} needs its encoder: load(path, encoder=...)")
        if encoder.fingerprint != meta["fingerprint"]:
            raise ValueError(f"saved with another encoder than {encoder.name}")
        tuner = cls(encoder, meta["class_names"], meta["template"], **meta["params"])
        tuner._take_up(arrays, meta)
        return tuner

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_state, (self.state(), self.encoder)

    # For methods to use -----------------------------------------------------------------------

    def _places(self) -> int | None:
        """How many context vectors; None for one a token of the template's opening words."""
        return None

    def _views(self, batch: Batch) -> Any:
        """(n, V, d) tensor where the encoder lies; plain features are one view each."""
        x = torch.as_tensor(batch.x).float().to(self.encoder.device)
        return x if x.ndim == 3 else x[:, None, :]

    def _back(self, batch: Batch, logits: Sequence[Any]) -> Array:
        """Logits of all samples, as the caller's kind of array."""
        rows = torch.stack(list(logits)) if logits else torch.empty(0, self.n_classes)
        return like(batch, rows.detach().cpu().numpy())

    def _cosine_logits(self, features: Any, text: Any) -> Any:
        return self.logit_scale * (features @ text.transpose(-1, -2))


def check_shapes(arrays: Mapping[str, np.ndarray], due: Mapping[str, Sequence[int]]) -> None:
    """Raise if stored arrays are not of the shapes that are due."""
    for name, shape in due.items():
        if arrays[name].shape != tuple(shape):
            raise ValueError(f"{name} of shape {arrays[name].shape}, where {tuple(shape)} is due")


def entropies(logits: Any) -> Any:
    """(n, C) logits -> (n,) entropies of their softmax."""
    logs = torch.log_softmax(logits, dim=-1)
    return -(logs.exp() * logs).sum(dim=-1)


def surest(logits: Any, keep: int) -> Any:
    """Rows of the `keep` lowest entropies, the surest first."""
    return entropies(logits).argsort(stable=True)[:keep]


def marginal_entropy(logits: Any) -> Any:
    """Entropy of the mean probability over rows, in log space as TPT computes it."""
    logs = torch.log_softmax(logits, dim=-1)
    mean = torch.logsumexp(logs, dim=0) - float(np.log(len(logs)))
    mean = mean.clamp(min=torch.finfo(mean.dtype).min)  # 0 x -inf would be NaN
    return -(mean.exp() * mean).sum()
