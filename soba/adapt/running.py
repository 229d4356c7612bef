"""What the methods share that keep running sums of a stream in place of its samples."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt.queue import EntropyQueue
from soba.adapt.stream import StreamAdapter


class RunningAdapter(StreamAdapter):
    """A stream adapter without queues: each sample is added to some sums, once, and forgotten.

    Sums are float64. What they were made of cannot be told apart any more, so such adapters do
    not merge (a sample that both saw would count twice), and under other text they start over.
    A method makes its sums in `_reset`, and names them.
    """

    keeps_samples: ClassVar[bool] = False
    _running: ClassVar[tuple[str, ...]]  # the sums, attributes less their underscore: its state
    _scoring_reads: ClassVar[tuple[str, ...]] = ()  # those of them that scoring reads

    def _check_merges(self) -> None:
        raise ValueError(
            f"{self.name} keeps sums and no samples: one that both adapters saw would count twice, "
            "so they cannot be merged"
        )

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        return {}

    def _reset(self) -> None:
        super()._reset()
        self._copied: tuple[int, dict[str, np.ndarray]] = (-1, {})

    def _take_over(self, other: Self) -> None:
        """Nothing: no sample is there to be scored under the new text."""

    def _view(self) -> Self:
        with self._lock:
            view = super()._view()
            if self._copied[0] != self.n_seen:  # sums change in place
                sums = {f"_{name}": getattr(self, f"_{name}") for name in self._scoring_reads}
                self._copied = self.n_seen, {name: array.copy() for name, array in sums.items()}
            view.__dict__.update(self._copied[1])
        return view

    def _arrays(self) -> dict[str, np.ndarray]:
        return super()._arrays() | {name: getattr(self, f"_{name}") for name in self._running}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        super()._restore(arrays, meta)
        for name in self._running:
            if arrays[name].shape != getattr(self, f"_{name}").shape:
                raise ValueError(f"the stored {name} have shape {arrays[name].shape}")
            setattr(self, f"_{name}", arrays[name].astype(np.float64))
