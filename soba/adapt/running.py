"""What the methods share that keep running sums of a stream in place of its samples."""

from __future__ import annotations

from typing import ClassVar, Self

from soba.adapt.queue import EntropyQueue
from soba.adapt.stream import StreamAdapter


class RunningAdapter(StreamAdapter):
    """A stream adapter without queues: each sample is added to some sums, once, and forgotten.

    Sums are float64 and depend on the set of samples only, but for rounding. What they were made
    of cannot be told apart any more, so such adapters do not merge (a sample that both saw would
    count twice), and under other text they start over.
    """

    keeps_samples: ClassVar[bool] = False

    def _check_merges(self) -> None:
        raise ValueError(
            f"{self.name} keeps sums and no samples: one that both adapters saw would count twice, "
            "so they cannot be merged"
        )

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        return {}

    def _take_over(self, other: Self) -> None:
        """Nothing: no sample is there to be scored under the new text."""
