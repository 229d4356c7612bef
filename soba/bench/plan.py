"""What a benchmark run consists of, and all that can be wrong with it, before any work."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

from soba.bench import tuning
from soba.bench.evaluate import streams
from soba.bench.method_factory import min_views
from soba.bench.orders import JOINED, ORDERS
from soba.bench.sources import Source
from soba.registry import card


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
        Run methods that need generated views without them.
    fixed_constants
        Give every data set the default hyper-parameters, TDA's too, whose official code has
        constants of its own for each.
    """

    source: Source
    methods: tuple[str, ...]
    orders: int = 5
    order: str = "shuffled"
    tune_on: str = "paper"
    views: int = 1
    stream_views: bool = False
    fallback: bool = False
    fixed_constants: bool = False

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
        needs = card(method).min_views > 1
        return self.views if needs or self.stream_views else 1

    def candidates(self, method: str) -> tuple[float, ...]:
        """The values of alpha to search among."""
        return () if self.tune_on == "paper" else tuning.candidates(method)

    def constants(self, stream: Stream, method: str) -> dict[str, float]:
        """What the official code of a method sets for this data set; nothing where it is tuned."""
        return {} if self.fixed_constants else self._official(stream, method)

    def _official(self, stream: Stream, method: str) -> dict[str, float]:
        if self.tune_on != "paper" or self.joined:
            return {}
        return card(method).paper.constants_for(stream.name)

    def tuned(self, method: str) -> bool:
        """Whether anything is searched for a method; few-shot methods search by themselves."""
        if card(method).few_shot and not card(method).tunes_prompts:
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
        if card(method).few_shot:
            transfer = card(method).tunes_prompts
            sets = [self.source.train_set(name, transfer=transfer) for name in stream.datasets]
            needed += [(name, "train") for name in sets]
        return list(dict.fromkeys(needed))

    def problems(self) -> list[str]:
        """All that is wrong with methods and data, a sentence each; no image is opened."""
        sentences = []
        for name in self.methods:
            if min_views(name) > self.views:
                sentences.append(f"{name}: needs {min_views(name)} views at least: say --views")
            if card(name).per_prompt and self.joined:
                sentences.append(f"{name}: lets the prompts of one set vote; not for {self.order}")
            if card(name).takes_generated_views and not self.fallback:
                sentences.append(
                    f"{name}: no views are generated here: say --fallback, or leave it out"
                )
        cells = itertools.product(self.streams, self.methods)
        if self.fixed_constants and not any(self._official(*cell) for cell in cells):
            sentences.append("--fixed-constants: no method here has constants of a data set's own")
        for dataset, split in self.all_needed():
            sentences += self.source.problems(dataset, split)
        return sentences

    def all_needed(self) -> list[tuple[str, str]]:
        """The (data set, split) pairs of all cells."""
        needed = [
            pair
            for stream in self.streams
            for method in self.methods
            for pair in self.needed(stream, method)
        ]
        return list(dict.fromkeys(needed))
