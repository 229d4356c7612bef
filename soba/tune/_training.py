"""How CoOp and CoCoOp are trained: SGD by epochs with the schedule of their code base, Dassl."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from soba.tune._checkpoint import Checkpoint
from soba.tune._torch import torch

_WARM_UP = 1e-5  # the learning rate of warm-up epochs


def train(
    parameters: list[Any],
    logits_of: Callable[[Any], Any],
    samples: np.ndarray,
    targets: np.ndarray,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    warm_up: int,
    seed: int,
    checkpoint: Checkpoint | None = None,
) -> list[float]:
    """Train the parameters in place; returns the mean loss of each epoch.

    `samples` are (n, d), or (n, V, d) with V augmentations of each, of which every epoch draws
    one: what random crops are to training on images. As in Dassl an epoch leaves out the last batch
    if it is incomplete, unless it is the only one. With a checkpoint, each epoch is kept there, and
    those that are there already are not run again.
    """
    device = parameters[0].device
    x, y = torch.as_tensor(samples).to(device), torch.as_tensor(targets).to(device)
    random = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9, weight_decay=5e-4)
    trained = len(x) - len(x) % batch_size or len(x)  # samples an epoch
    losses = [] if checkpoint is None else checkpoint.restore(parameters, optimiser, random)
    for epoch in range(len(losses), epochs):
        optimiser.param_groups[0]["lr"] = rate(epoch, epochs, learning_rate, warm_up)
        total = 0.0
        for rows in torch.randperm(len(x), generator=random)[:trained].split(batch_size):
            rows = rows.to(device)
            batch = x[rows]
            if x.ndim == 3:
                drawn = torch.randint(x.shape[1], (len(rows),), generator=random).to(device)
                batch = batch[torch.arange(len(rows), device=device), drawn]
            loss = torch.nn.functional.cross_entropy(logits_of(batch), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(rows)
        losses.append(total / trained)
        if checkpoint is not None:
            checkpoint.save(parameters, optimiser, random, losses)
    return losses


def rate(epoch: int, epochs: int, base: float, warm_up: int) -> float:
    """The learning rate of an epoch: tiny while warming up, then a cosine that begins at `base`.

    >>> [round(rate(epoch, 4, 1.0, warm_up=1), 3) for epoch in range(4)]
    [0.0, 1.0, 0.854, 0.5]
    """
    if epoch < warm_up:
        return _WARM_UP
    return base * (1 + math.cos(math.pi * (epoch - warm_up) / epochs)) / 2
