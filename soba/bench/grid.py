"""Data sets x methods x orders -> one JSON record a cell.

A results folder holds features/ (made once), tuning/ (what was searched) and records/, a file per
cell. Files appear whole or not at all and their names carry a digest of all that decides their
content, so a run can be killed at any moment: the next one skips what is there and ends with the
records of an undisturbed one, but for the seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from soba.adapt.base import parameter_defaults
from soba.bench import tuning
from soba.bench.build import Workshop
from soba.bench.evaluate import Record, evaluate
from soba.bench.feature_folder import FeatureFolder
from soba.bench.orders import arrange, join
from soba.bench.plan import Plan, Stream, is_few_shot
from soba.bench.record_files import alone, digest, plain_name, read_record, write_record
from soba.datasets import ImageSet
from soba.encode.encoder import Encoder
from soba.encode.store import FeatureSet
from soba.registry import adapter_class, list_tuners

STREAM_WORK = 64  # a stream counts as much as this many images in the progress
Step = Callable[[str, int], None]  # what was done, and how much work it was


@dataclass(frozen=True)
class Loaded:
    """The features of a stream, and the domain of each image."""

    features: FeatureSet
    domains: np.ndarray
    class_ids: tuple[str, ...]
    encode_seconds: float


class Grid:
    """The cells of a plan.

    Parameters
    ----------
    plan
        What to run.
    folder
        Of the features; its encoder makes them.
    results
        The folder that everything is written to.
    model
        What the records call the encoder.
    tunable
        The same model with a text tower that passes gradients, for the methods that tune prompts.
    """

    def __init__(
        self,
        plan: Plan,
        folder: FeatureFolder,
        results: Path,
        *,
        model: str,
        tunable: Encoder | None = None,
    ) -> None:
        if folder.views != plan.views:
            raise ValueError(f"{folder.views} views are made where {plan.views} are planned")
        self.plan, self.results, self.model = plan, results, model
        # Methods that can do with one view have cells of their own, whatever the others take.
        self._folders = {plan.views: folder} | {1: dataclasses.replace(folder, views=1)}
        self.tunable = tunable
        self._trained: dict[str, Any] = {}  # prompts learned on the source set serve all others
        self._images: dict[tuple[str, str], ImageSet] = {}
        self._paths: dict[tuple[str, str, int], Path] = {}

    def work(self) -> int:
        """What `step` will count up to."""
        total = 0
        counted: set[Path] = set()  # files that several cells share
        for stream in self.plan.streams:
            for method in self.plan.methods:
                missing = len(self._missing(stream, method))
                if not missing:
                    continue
                total += STREAM_WORK * missing
                files = {}
                views = self.plan.views_of(method)
                for name, split in self.plan.needed(stream, method):
                    files[self._path(name, split, views)] = len(self._open(name, split)) * views
                if self.plan.candidates(method):
                    streams = len(self.plan.candidates(method))
                    files[self._tuning_file(stream, method)] = STREAM_WORK * streams
                new = {path for path in files if not path.exists()} - counted
                total += sum(files[path] for path in new)
                counted |= new
        return total

    # The work ---------------------------------------------------------------------------------

    def run(self, step: Step = lambda what, amount: None) -> list[Record]:
        """Do what has not been done, and return the records of all cells."""
        for name in ("features", "records", "tuning"):
            (self.results / name).mkdir(parents=True, exist_ok=True)
        with alone(self.results):
            for stream in self.plan.streams:
                loaded: dict[int, Loaded] = {}
                for method in self.plan.methods:
                    seeds, views = self._missing(stream, method), self.plan.views_of(method)
                    if seeds:
                        if views not in loaded:
                            loaded[views] = self._load(stream, "test", views, step)
                        self._fill(stream, method, seeds, loaded[views], step)
        return self.records()

    def records(self) -> list[Record]:
        """Of the cells that are done."""
        paths = [
            self._record_file(stream, method, seed)
            for stream in self.plan.streams
            for method in self.plan.methods
            for seed in self.plan.seeds(method)
        ]
        return [read_record(path) for path in paths if path.exists()]

    def _fill(
        self, stream: Stream, method: str, seeds: list[int], loaded: Loaded, step: Step
    ) -> None:
        workshop = self._workshop(stream, method, loaded, step)
        overrides, tuned_on = self._tuned(stream, method, loaded, step)
        if method == "difftpt" and self.plan.fallback:
            overrides["fallback"] = True

        def keep(record: Record) -> None:
            entries = self._entries(stream, loaded) | {"tuned_on": tuned_on}
            if is_few_shot(method) and method not in list_tuners():
                entries["tuned_on"] = self._searched_itself(record["tuned_on"])
            write_record(self._record_file(stream, method, record["seed"]), record | entries)
            step(f"{method} on {stream.name}", STREAM_WORK)

        self._evaluate(workshop, method, seeds, overrides, loaded, keep, self._by_domain(loaded))

    def _evaluate(
        self,
        workshop: Workshop,
        method: str,
        seeds: list[int],
        overrides: Record,
        loaded: Loaded,
        keep: Callable[[Record], None] = lambda record: None,
        more: Callable[[np.ndarray, np.ndarray], Record] = lambda order, logits: {},
    ) -> list[Record]:
        """The one place where streams run."""
        features, labels = workshop.features, workshop.features.labels
        assert labels is not None
        return evaluate(
            features,
            [method],
            orders=seeds,
            overrides=overrides,
            workshop=workshop,
            arrange=lambda seed: arrange(
                self.plan.order, labels, features.classes, seed, loaded.domains
            ),
            more=more,
            keep=keep,
        )

    def _entries(self, stream: Stream, loaded: Loaded) -> Record:
        """What the grid knows of a cell and `evaluate` does not."""
        features = loaded.features
        return {
            "benchmark": self.plan.source.name,
            "model": self.model,
            "dataset": stream.name,
            "order": self.plan.order,
            "encode_seconds": loaded.encode_seconds,
            "view_policy": features.view_policy or "one view",
            "prompts": list(features.prompts or ()) or "of each domain",
        }

    def _by_domain(self, loaded: Loaded) -> Callable[[np.ndarray, np.ndarray], Record]:
        """The accuracy on each domain of a joined stream."""
        labels, names = loaded.features.labels, self.plan.source.datasets
        assert labels is not None

        def more(order: np.ndarray, logits: np.ndarray) -> Record:
            hits = logits.argmax(axis=1) == labels[order]
            domains = loaded.domains[order]
            scores = {n: 100.0 * float(hits[domains == i].mean()) for i, n in enumerate(names)}
            return {"accuracy_per_domain": scores}

        return more if self.plan.joined else lambda order, logits: {}

    # Features ---------------------------------------------------------------------------------

    def _open(self, dataset: str, split: str) -> ImageSet:
        if (dataset, split) not in self._images:
            images = self.plan.source.images(dataset, split)
            called = dataset if split == "test" else f"{dataset}-{split}"
            self._images[dataset, split] = dataclasses.replace(images, name=called)
        return self._images[dataset, split]

    def _path(self, dataset: str, split: str, views: int) -> Path:
        key = dataset, split, views
        if key not in self._paths:  # every cell asks, and a path is a long digest
            self._paths[key] = self._folders[views].path(self._open(dataset, split))
        return self._paths[key]

    def _features(
        self, dataset: str, split: str, views: int, step: Step
    ) -> tuple[FeatureSet, float]:
        images = self._open(dataset, split)

        def encoded(count: int) -> None:
            step(f"encoding {images.name}", count * views)

        return self._folders[views].get(images, encoded)

    def _load(self, stream: Stream, split: str, views: int, step: Step) -> Loaded:
        parts = [self._features(dataset, split, views, step) for dataset in stream.datasets]
        ids = [self.plan.source.class_ids(dataset) for dataset in stream.datasets]
        seconds = sum(seconds for _, seconds in parts)
        if len(parts) == 1:
            features = parts[0][0]
            return Loaded(features, np.zeros(len(features), np.int64), ids[0], seconds)
        joined, domains = join([features for features, _ in parts], ids)
        known = tuple(dict.fromkeys(key for listed in ids for key in listed))
        return Loaded(joined, domains, known, seconds)

    def _workshop(self, stream: Stream, method: str, loaded: Loaded, step: Step) -> Workshop:
        """The features, with all that a method needs besides."""
        if method not in list_tuners():
            return Workshop(self._equipped(stream, method, loaded, step))
        source = None
        if is_few_shot(method):
            name = self.plan.source.train_set(stream.datasets[0], transfer=True)
            source, _ = self._features(name, "train", self.plan.views_of(method), step)
        return Workshop(loaded.features, self.tunable, source, self._trained)

    def _equipped(self, stream: Stream, method: str, loaded: Loaded, step: Step) -> FeatureSet:
        """The features with prompts and labelled samples, for the methods that take them."""
        features, views = loaded.features, self.plan.views_of(method)
        if adapter_class(method).per_prompt:
            prompts = self._folders[views].prompt_features(self._open(stream.datasets[0], "test"))
            features = dataclasses.replace(features, prompt_features=prompts)
        if not is_few_shot(method):
            return features
        rows, labels = [], []
        index = {key: label for label, key in enumerate(loaded.class_ids)}
        source = self.plan.source
        for name in dict.fromkeys(source.train_set(d, transfer=False) for d in stream.datasets):
            shots, _ = self._features(name, "train", views, step)
            mapped = np.array([index.get(key, -1) for key in source.class_ids(name)])
            assert shots.labels is not None
            found = mapped[shots.labels]  # -1: a class that is not told apart here
            rows.append(np.asarray(shots.image_features)[found >= 0])
            labels.append(found[found >= 0])
        features = dataclasses.replace(
            features,
            support_features=np.concatenate(rows),
            support_labels=np.concatenate(labels),
        )
        if self.plan.tune_on not in ("val", "test"):
            return features
        held_out = loaded
        if self.plan.tune_on == "val":
            held_out = self._load(stream, "val", views, step)
        return dataclasses.replace(
            features,
            val_features=held_out.features.image_features,
            val_labels=held_out.features.labels,
        )

    # Tuning -----------------------------------------------------------------------------------

    def _tuned(self, stream: Stream, method: str, loaded: Loaded, step: Step) -> tuple[Record, str]:
        """The hyper-parameters that were searched, and what a record says of them."""
        if not self.plan.candidates(method):
            return {}, tuning.PAPER
        path = self._tuning_file(stream, method)
        if not path.exists():
            searched, views = loaded, self.plan.views_of(method)
            if self.plan.tune_on == "val":
                searched = self._load(stream, "val", views, step)
            elif name := self.plan.tuning_set:
                searched = self._load(Stream(name, (name,)), "test", views, step)
            found = tuning.search(method, self._scored(method, searched, step))
            scores = {str(alpha): score for alpha, score in found.scores.items()}
            write_record(path, {"alpha": found.alpha, "scores": scores})
        return {"alpha": read_record(path)["alpha"]}, tuning.tuned_on(
            self.plan.tune_on, stream.datasets
        )

    def _scored(self, method: str, searched: Loaded, step: Step) -> Callable[[float], float]:
        """How good an alpha is, on one stream of its own."""
        features = searched.features
        blind = self.plan.tune_on == "stream"
        agreement = tuning.NeighbourAgreement(features).entry if blind else lambda order, logits: {}

        def run(alpha: float) -> float:
            [record] = self._evaluate(
                Workshop(features),
                method,
                [tuning.SEED],
                {"alpha": alpha},
                searched,
                more=agreement,
            )
            step(f"alpha of {method} on {self.plan.tune_on}", STREAM_WORK)
            return float(record["agreement" if blind else "accuracy"])

        return run

    def _searched_itself(self, said: str) -> str:
        """The few-shot methods search on what they are given."""
        if said != "validation":
            return tuning.PAPER
        return tuning.TEST_LABELS if self.plan.tune_on == "test" else "val"

    # Files ------------------------------------------------------------------------------------

    def _missing(self, stream: Stream, method: str) -> list[int]:
        seeds = self.plan.seeds(method)
        return [seed for seed in seeds if not self._record_file(stream, method, seed).exists()]

    def _record_file(self, stream: Stream, method: str, seed: int) -> Path:
        parts = self._identity(stream, method) | {"seed": seed}
        name = f"{self.model}-{stream.name}-{method}-{self.plan.order}-{seed}-{digest(parts)}.json"
        return self.results / "records" / plain_name(name)

    def _tuning_file(self, stream: Stream, method: str) -> Path:
        parts = self._identity(stream, method) | {"factors": tuning.FACTORS, "seed": tuning.SEED}
        where = stream.name
        if self.plan.tuning_set:  # searched once, for all sets
            file = self._path(self.plan.tune_on, "test", self.plan.views_of(method)).name
            parts |= {"files": [file], "benchmark": None}
            where = self.plan.tune_on
        order, tune_on = self.plan.order, self.plan.tune_on
        name = f"{self.model}-{where}-{method}-{order}-{tune_on}-{digest(parts)}.json"
        return self.results / "tuning" / plain_name(name)

    def _identity(self, stream: Stream, method: str) -> Record:
        """All that decides the content of a cell, but for the seed.

        What is not tuned is the same cell, whatever the others are tuned on.
        """
        needed, views = self.plan.needed(stream, method), self.plan.views_of(method)
        return {
            "benchmark": self.plan.source.name,
            "method": method,
            "defaults": parameter_defaults(adapter_class(method)),
            "order": self.plan.order,
            "tune_on": self.plan.tune_on if self.plan.tuned(method) else "paper",
            "files": [self._path(name, split, views).name for name, split in needed],
            "fallback": self.plan.fallback and method == "difftpt",
        }
