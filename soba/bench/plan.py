"""What a benchmark run consists of, and all that can be wrong with it, before any work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from soba.adapt._few_shot import FewShotAdapter
from soba.bench import tuning
from soba.bench.build import least_views
from soba.bench.evaluate import streams
from soba.bench.orders import JOINED, ORDERS
from soba.bench.sources import Source
from soba.registry import adapter_class, list_tuners


@dataclass(frozen=True)
class Stream:
    """What is streamed as one: a data set, or all domains of a benchmark joined."""

    name: str
    datasets: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Data sets x methods x orders.

    Parameters
    ----------
    source
        Of the images.
    methods
        By name; one that learns nothing from the stream runs once, the others in `orders` orders.
    order
        One of `soba.bench.orders.ORDERS`.
    tune_on
        "paper", "val", "stream", "test", or the name of a data set: see `soba.bench.tuning`.
    views
        Of each image, for the methods that need them.
    stream_views
        Give the views to the methods that learn from the stream too, by TDA's rule: the surest
        tenth is averaged. The paper's numbers on ImageNet's variants were made like that.
    fallback
        Run difftpt without generated views.
    """

    source: Source
    methods: tuple[str, ...]
    orders: int = 5
    order: str = "shuffled"
    tune_on: str = "paper"
    views: int = 1
    stream_views: bool = False
    fallback: bool = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"no order {self.order!r}; there are: {', '.join(ORDERS)}")
        if self.orders < 1:
            raise ValueError(f"orders must be at least 1, not {self.orders}")
        if self.tune_on not in ("paper", "val", "stream", "test") and not self.tuning_set:
            raise ValueError(
                f"cannot tune on {self.tune_on!r}: say paper, val, stream, test or the name of a "
                f"data set, such as {self.source.datasets[0]}"
            )

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        datasets = self.source.datasets
        if self.joined:
            return (Stream(f"{self.source.name}-all", datasets),)
        return tuple(Stream(name, (name,)) for name in datasets)

    @property
    def joined(self) -> bool:
        """Whether all domains are one stream."""
        return self.order in JOINED

    @property
    def tuning_set(self) -> str | None:
        """The one data set that settings are searched on for all."""
        return self.tune_on if self.source.knows(self.tune_on) else None

    def seeds(self, method: str) -> range:
        return range(streams(method, self.orders))

    def views_of(self, method: str) -> int:
        """How many views of each image a method gets."""
        needs = adapter_class(method).least_views > 1
        return self.views if needs or self.stream_views else 1

    def candidates(self, method: str) -> tuple[float, ...]:
        """The values of alpha to search among."""
        return () if self.tune_on == "paper" else tuning.candidates(method)

    def tuned(self, method: str) -> bool:
        """Whether anything is searched for a method; few-shot methods search by themselves."""
        if is_few_shot(method) and method not in list_tuners():
            return self.tune_on in ("val", "test")
        return bool(self.candidates(method))

    def needed(self, stream: Stream, method: str) -> list[tuple[str, str]]:
        """The (data set, split) pairs that the cells of a method on a stream are made of."""
        needed = [(name, "test") for name in stream.datasets]
        if self.tuned(method):
            if self.tune_on == "val":
                needed += [(name, "val") for name in stream.datasets]
            elif self.tuning_set:
                needed.append((self.tuning_set, "test"))
        if is_few_shot(method):
            transfer = method in list_tuners()
            sets = [self.source.train_set(name, transfer=transfer) for name in stream.datasets]
            needed += [(name, "train") for name in sets]
        return list(dict.fromkeys(needed))

    def problems(self) -> list[str]:
        """All that is wrong with methods and data, a sentence each; no image is opened."""
        found = []
        for name in self.methods:
            if least_views(name) > self.views:
                found.append(f"{name}: needs {least_views(name)} views at least: say --views")
            if adapter_class(name).per_prompt and self.joined:
                found.append(f"{name}: lets the prompts of one set vote; not for {self.order}")
        if "difftpt" in self.methods and not self.fallback:
            found.append("difftpt: no views are generated here: say --fallback, or leave it out")
        for dataset, split in self.all_needed():
            found += self.source.problems(dataset, split)
        return found

    def all_needed(self) -> list[tuple[str, str]]:
        """The (data set, split) pairs of all cells."""
        needed = [
            pair
            for stream in self.streams
            for method in self.methods
            for pair in self.needed(stream, method)
        ]
        return list(dict.fromkeys(needed))


def is_few_shot(method: str) -> bool:
    return issubclass(adapter_class(method), FewShotAdapter)
