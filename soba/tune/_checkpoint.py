"""What a training has learned after its last epoch, in a file, so that a killed one goes on."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from soba._files import load_checked, save_checked
from soba.tune._torch import torch


class Checkpoint:
    """A file for one training: what decides its outcome is written beside what it has learned.

    Parameters
    ----------
    path
        Of the file, in a folder that exists.
    run
        All that decides the outcome, as plain values, and `data` as arrays: a file of another
        training is refused, since going on from it would mix the two.
    """

    def __init__(self, path: str | os.PathLike[str], run: dict[str, Any], *data: np.ndarray):
        self.path = Path(path)
        if not self.path.parent.is_dir():  # not after the first epoch
            raise FileNotFoundError(f"{path}: the folder does not exist")
        code = hashlib.sha256(json.dumps(run, sort_keys=True).encode())
        for array in data:
            code.update(f"{array.dtype} {array.shape}".encode())
            code.update(np.ascontiguousarray(array).data)
        self._run = code.hexdigest()

    def save(self, parameters: list[Any], optimiser: Any, random: Any, losses: list[float]) -> None:
        arrays = {"random": random.get_state()}
        for number, parameter in enumerate(parameters):
            arrays[f"parameter.{number}"] = parameter.detach()
            arrays[f"momentum.{number}"] = optimiser.state[parameter]["momentum_buffer"]
        on_host = {name: tensor.cpu().numpy() for name, tensor in arrays.items()}
        save_checked(self.path, on_host, {"run": self._run, "losses": losses})

    def restore(self, parameters: list[Any], optimiser: Any, random: Any) -> list[float]:
        """Bring all to where the file left off; returns the losses of the epochs done."""
        if not self.path.exists():
            return []
        arrays, meta = load_checked(self.path)
        if meta.get("run") != self._run:
            raise ValueError(
                f"{self.path}: is not a checkpoint of this training (other samples, classes, model "
                "or settings): move it away, or name another file"
            )
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        random.set_state(tensors["random"])
        with torch.no_grad():
            for number, parameter in enumerate(parameters):
                parameter.copy_(tensors[f"parameter.{number}"])
                momentum = tensors[f"momentum.{number}"].to(parameter.device)
                optimiser.state[parameter]["momentum_buffer"] = momentum
        return list(meta["losses"])
