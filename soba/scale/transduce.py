"""The EM of `transduce` over the shards of a run: a map and a sum, round by round.

Each shard is summed up by itself, and the sums are added in the order of the shards, so whoever
does the work, the same additions are made: the same bits on the same kind of machine. A set that
is not cut into these shards agrees to rounding.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from soba._files import load_checked, save_checked
from soba._formats import FORMAT, OLDEST, check_format
from soba.adapt._arrays import Array, Batch, like, read_batch
from soba.adapt.soba_plus.fit import ROUNDS
from soba.adapt.soba_plus.model import Gaussians
from soba.adapt.soba_plus.transduce import EMModel, EMStatistics, block_rows, em_rounds, sum_up
from soba.scale.folder import ShardFolder
from soba.scale.run import Here, Runner

KIND = "transduction"  # of the file, where a state says which adapter it is of


def em_shards(
    folder: ShardFolder,
    *,
    rounds: int = ROUNDS,
    runner: Runner | None = None,
    step: Callable[[int], None] = lambda count: None,
) -> EMModel:
    """The model that all images of a run ask for together; `step` counts shards, in each round."""
    numbers = range(len(folder.manifest.shards))

    def statistics_of(model: EMModel) -> EMStatistics | None:
        total: EMStatistics | None = None
        for part in (runner or Here()).map(shard_statistics, (folder, model), numbers):
            step(1)
            if part is not None:
                total = part if total is None else total + part
        return total

    scaled = folder.text_features * np.float32(folder.manifest.logit_scale)
    return em_rounds(scaled, statistics_of, rounds=rounds)


def shard_statistics(shared: tuple[ShardFolder, EMModel], number: int) -> EMStatistics | None:
    """The E step on one shard; None where none of its images could be read."""
    folder, model = shared
    blocks = folder.blocks(number, block_rows(len(folder.text_features)))
    batches = (read_batch(block.features, folder.manifest.dim) for block in blocks)
    return sum_up(batches, model)


@dataclass(frozen=True)
class FormerModel:
    """A model of format 2. The images that it was made of are not in the file to make it anew, so
    it answers as it did."""

    text: np.ndarray  # (C, d) text features times the logit scale
    weights: np.ndarray  # (C, d)
    bias: np.ndarray  # (C,)
    evidence: np.ndarray  # (C,)
    known: np.ndarray  # (C,) bool: the likeliest of these is what all are measured against
    prior: np.ndarray  # (C,)

    def logits(self, batch: Batch) -> Array:
        """(m, d) rows -> (m, C), in the batch's library."""
        scores = batch.x @ like(batch, self.weights).T + like(batch, self.bias)
        rivals = scores[:, like(batch, np.flatnonzero(self.known))]
        scores -= batch.xp.max(rivals, axis=-1, keepdims=True)
        logits = batch.x @ like(batch, self.text).T + like(batch, self.prior)
        return logits + scores * like(batch, self.evidence)


def save_model(path: str | os.PathLike[str], model: EMModel, folder: ShardFolder) -> None:
    """Write a model to a file: atomic, checksummed, with what a state says of its run."""
    arrays = {"text": model.text}
    if model.gaussians is not None and model.prior is not None:
        arrays |= {name: np.asarray(value) for name, value in asdict(model.gaussians).items()}
        arrays |= {"prior": model.prior, "overconfidence": np.asarray(model.overconfidence)}
    meta = {"model": KIND, "format": FORMAT, "note": folder.note()}
    meta |= {"given_space": folder.manifest.id_space}
    save_checked(path, arrays, meta)


def load_model(path: str | os.PathLike[str]) -> EMModel | FormerModel:
    """What `save_model` wrote, to score with."""
    arrays, meta = load_checked(path)
    if meta.get("model") != KIND:
        raise ValueError(f"{path}: not a model of soba learn --transductive")
    former = meta.get("format", OLDEST)  # of format 2 they do not say it
    check_format(f"{path}: the model", former)
    if former == OLDEST and set(arrays) == {field.name for field in fields(FormerModel)}:
        return FormerModel(**arrays)
    names = {field.name for field in fields(Gaussians)}
    if set(arrays) not in ({"text"}, names | {"text", "prior", "overconfidence"}):
        raise ValueError(f"{path}: the stored arrays do not fit together")
    if len(arrays) == 1:
        return EMModel(arrays["text"])
    gaussians: Any = {name: arrays[name] for name in names}
    gaussians["text_worth"] = float(arrays["text_worth"])
    overconfidence = float(arrays["overconfidence"])
    return EMModel(arrays["text"], Gaussians(**gaussians), arrays["prior"], overconfidence)


def model_logits(model: EMModel | FormerModel, features: np.ndarray) -> np.ndarray:
    """(n, d) features -> (n, C) logits."""
    batch: Batch = read_batch(features, model.text.shape[1])
    return np.asarray(model.logits(batch))
