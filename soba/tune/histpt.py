"""HisTPT: prompt tuning towards pseudo-labels from three banks of past text (NeurIPS 2024).

Re-implementation from the paper: the classification code is not released. As in the public
segmentation code: the banks, a context of its own for each class, one step of AdamW a sample with
weight decay 0.05, gradients clipped to a norm of 5, and the learning rate, 1e-4 times 0.1 for the
language encoder. (TPT's 5e-3 is for a prompt that starts over with each sample; this one never
does, and lost 18 points on the icons with it.) Unknown and chosen here, as TPT has it: the surest
tenth of the views stands for the augmented image. Also ours: prototypes are normalised; a sample's
entropy is that of its probabilities (the code takes raw logits for their logarithms); the sample is
scored with the prompt it has just tuned.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._arrays import Array, Batch
from soba.adapt._ids import SeenIds
from soba.adapt.base import at_least_zero, positive, whole
from soba.adapt.card import Card
from soba.encode.encoder import Encoder
from soba.tune._base import TEMPLATE, PromptTuner, check_shapes, entropies, surest
from soba.tune._torch import gradients, plain, torch
from soba.tune.tpt import share

_BANKS = ("local", "hard", "overall", "entropies")  # arrays of the banks
_MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW
_DROPS = (0.88889, 0.96296)  # shares of the stream from which on the rate is a tenth, a hundredth


class Banks:
    """Text features (C, d) of the past: the last ones, the hardest of them, and a slow mean.

    Examples
    --------
    >>> banks = Banks(capacity=2, hardest=1, momentum=0.5)
    >>> for text, entropy in ((0.0, 0.3), (1.0, 0.9), (2.0, 0.1)):
    ...     banks.push(np.full((1, 1), text), entropy)
    >>> banks.local[:, 0, 0].tolist(), banks.hard[:, 0, 0].tolist(), banks.overall.item()
    ([2.0, 1.0], [1.0, 1.0], 0.5)
    """

    def __init__(self, capacity: int, hardest: int, momentum: float) -> None:
        self.capacity, self.hardest, self.momentum = capacity, hardest, momentum
        self.local = self.hard = np.empty((0, 0, 0), np.float32)  # (capacity, C, d), newest first
        self.entropies = np.empty(0)  # of the samples that `local` was pushed with
        self.overall = np.empty((0, 0), np.float32)  # (C, d)

    def push(self, text: np.ndarray, entropy: float) -> None:
        """Take in the text a sample was scored with; the first one fills the banks."""
        if len(self.local) == 0:
            self.local = self.hard = np.repeat(text[None], self.capacity, axis=0)
            self.entropies = np.full(self.capacity, entropy)
            self.overall = text.copy()
            return
        self.local = np.concatenate([text[None], self.local[:-1]])
        self.entropies = np.concatenate([[entropy], self.entropies[:-1]])
        order = np.argsort(-self.entropies, kind="stable")[: self.hardest]
        self.hard = np.concatenate([self.local[order].mean(axis=0)[None], self.hard[:-1]])
        oldest = (self.local[-1] + self.hard[-1]) / 2
        self.overall = self.momentum * self.overall + (1 - self.momentum) * oldest

    def prototypes(self) -> np.ndarray:
        """(3, C, d) unit rows: overall, local, hard."""
        rows = np.stack([self.overall, self.local.mean(axis=0), self.hard.mean(axis=0)])
        return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)


class HisTPT(PromptTuner):
    """Continual prompt tuning that remembers its history.

    Parameters
    ----------
    capacity
        Entries of the local and of the hard bank.
    hardest
        How many local entries, those of the highest entropies, make one entry of the hard bank;
        `capacity` at most.
    momentum
        Of the slow mean.
    steps, learning_rate, weight_decay, clip
        Of AdamW on the context vectors, M of each class, and the norm that their gradient is cut
        down to; neither contexts nor AdamW's moments are reset.
    selection
        Share of a sample's views to learn from, one at least: plain features will do.
    total
        Length of the stream, if known: the learning rate then falls to a tenth at 89% of it and to
        a hundredth at 96%, as in the public code. By default it stays: a stream has no end.

    Notes
    -----
    With other classes the contexts of those that stay, their moments and the ids of known samples
    are kept; new classes begin with the template's words, and the banks start over.

    `steps` + 1 passes of all C prompts and `steps` back, a sample; 2 capacity C d + 3 C M w floats
    with context vectors of width w. `adapt` learns; `logits` scores view 0 with the prompts as
    they stand.
    """

    card: ClassVar[Card] = Card(
        "histpt",
        title="HisTPT",
        colour="#ff306e",
        family="tuner",
        needs={"features", "gradients"},
        provenance="re-implementation from the paper",
    )

    def __init__(
        self,
        encoder: Encoder,
        class_names: Sequence[str],
        template: str = TEMPLATE,
        *,
        capacity: int = 32,
        hardest: int = 16,
        momentum: float = 0.99,
        steps: int = 1,
        learning_rate: float = 1e-5,
        weight_decay: float = 0.05,
        clip: float = 5.0,
        selection: float = 0.1,
        total: int | None = None,
    ) -> None:
        super().__init__(encoder, class_names, template)
        self.capacity = whole(capacity, "capacity")
        self.hardest = whole(hardest, "hardest")
        if self.hardest > self.capacity:
            raise ValueError(
                f"hardest must be {self.capacity} at most, the capacity, not {self.hardest}"
            )
        self.momentum = share(momentum, "momentum")
        self.steps = whole(steps, "steps")
        self.learning_rate = positive(learning_rate, "learning_rate")
        self.weight_decay = at_least_zero(weight_decay, "weight_decay")
        self.clip = positive(clip, "clip")
        self.selection = share(selection, "selection")
        self.total = None if total is None else whole(total, "total")
        self._reset()

    def fused(self, image: Any, banks: Banks | None = None) -> Any:
        """(C,) logits of one (d,) image under the three prototypes, the surer the heavier."""
        banks = self.banks_ if banks is None else banks
        prototypes = torch.as_tensor(banks.prototypes()).to(image.device)
        logits = self._cosine_logits(image, prototypes)  # (3, C)
        return torch.softmax(-entropies(logits), dim=0) @ logits

    def _reset(self) -> None:
        self.banks_ = Banks(self.capacity, self.hardest, self.momentum)
        self._seen = SeenIds()
        self._start(self._initial())

    def _initial(self) -> Any:
        """(C, M, w) the embedded words of the template, for each class."""
        return self._prompts.initial.repeat(self.n_classes, 1, 1)

    @gradients()
    def _start(self, context: Any) -> None:
        self._context = context.clone().requires_grad_()
        self._optimiser = torch.optim.AdamW(
            [self._context], lr=self.learning_rate, weight_decay=self.weight_decay
        )
        self._text = self._text_of(self._context)  # (C, d) under the present prompt

    def _text_of(self, context: Any) -> Any:
        with torch.no_grad():
            return self._prompts.features_of_each(context)

    def _logits(self, batch: Batch) -> Array:
        return self._back(batch, list(self._cosine_logits(self._views(batch)[:, 0], self._text)))

    def _adapt(self, batch: Batch, ids: np.ndarray | None) -> Array:
        ids, fresh = self._seen.number(ids, len(batch))
        new = set(fresh.tolist())
        rows = []
        for row, views in enumerate(self._views(batch)):
            if row in new:
                self._learn(views)
                self._seen.add(ids[row : row + 1])
            rows.append(self._cosine_logits(views[0], self._text))
        return self._back(batch, rows)

    @gradients()
    def _learn(self, views: Any) -> None:
        """Tune copies and keep them at the end: a step that fails changes nothing."""
        views = plain(views)
        logits = self._cosine_logits(views, self._text)
        banks = copy.copy(self.banks_)  # what is pushed replaces arrays, it does not change them
        rows = surest(logits, max(1, int(self.selection * len(views))))
        banks.push(self._text.cpu().numpy(), float(entropies(logits[rows]).mean()))
        label = self.fused(views[0], banks).argmax()
        context, optimiser = copy.deepcopy((self._context, self._optimiser))
        optimiser.param_groups[0]["lr"] = self._rate(len(self._seen))
        for _ in range(self.steps):
            tuned = self._cosine_logits(views[rows], self._prompts.features_of_each(context))
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(tuned, label.expand(len(tuned))).backward()
            torch.nn.utils.clip_grad_norm_(context, self.clip)
            optimiser.step()
        text = self._text_of(context)
        self.banks_, self._context, self._optimiser, self._text = banks, context, optimiser, text

    def _rate(self, seen: int) -> float:
        """The learning rate behind so many samples."""
        if self.total is None:
            return self.learning_rate
        return self.learning_rate * 0.1 ** sum(seen >= int(drop * self.total) for drop in _DROPS)

    def _take_over(self, other: Self) -> None:
        bound = other._bank_arrays()
        arrays = {name: array for name, array in other._arrays().items() if name not in bound}
        place = {name: k for k, name in enumerate(other.class_names)}
        kept = [k for k, name in enumerate(self.class_names) if name in place]
        rows = [place[self.class_names[k]] for k in kept]
        words = self._initial().cpu().numpy()
        for name in {"context", *_MOMENTS} & arrays.keys():
            moved = words.copy() if name == "context" else np.zeros_like(words)
            moved[kept] = arrays[name][rows]
            arrays[name] = moved
        self._restore(arrays, other._meta())

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = self._seen.arrays() | {"context": self._context.detach().cpu().numpy()}
        moments = self._optimiser.state.get(self._context)
        if moments:
            arrays |= {name: moments[name].cpu().numpy() for name in _MOMENTS}
        return arrays | self._bank_arrays()

    def _bank_arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self.banks_, name) for name in _BANKS if len(self.banks_.local)}

    def _meta(self) -> dict[str, Any]:
        moments = self._optimiser.state.get(self._context)
        return self._seen.meta() | {"step": float(moments["step"]) if moments else 0.0}

    @gradients()
    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        contexts, text = tuple(self._initial().shape), (self.n_classes, self.dim)
        entries = (self.capacity, *text)
        due: dict[str, tuple[int, ...]] = {"context": contexts}
        if arrays.keys() & set(_MOMENTS):
            due |= dict.fromkeys(_MOMENTS, contexts)
        if arrays.keys() & set(_BANKS):
            shapes = (entries, entries, text, entries[:1])
            due |= dict(zip(_BANKS, shapes, strict=True))
        check_shapes(arrays, due)
        self._seen = SeenIds.restored(arrays, meta)
        self._start(torch.as_tensor(arrays["context"]).to(self.encoder.device))
        if "local" in arrays:
            for name in _BANKS:
                setattr(self.banks_, name, arrays[name])
        if "exp_avg" in arrays:
            moments = {n: torch.tensor(arrays[n], device=self.encoder.device) for n in _MOMENTS}
            self._optimiser.state[self._context] = {"step": torch.tensor(meta["step"])} | moments
