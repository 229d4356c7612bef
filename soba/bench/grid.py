"""Data sets x methods x orders -> one JSON record a cell.

A results folder holds features/ (made once), tuning/ (what was searched) and records/, a file per
cell. Files appear whole or not at all and their names carry a digest of all that decides their
content, so a run can be killed at any moment: the next one skips what is there and ends with the
records of an undisturbed one, but for the seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from soba.adapt.base import parameter_defaults
from soba.bench import tuning
from soba.bench.build import Workshop
from soba.bench.evaluate import Record, evaluate
from soba.bench.feature_folder import FeatureFolder
from soba.bench.loading import Loaded, Loader, Step
from soba.bench.orders import arrange
from soba.bench.plan import Plan, Stream, is_few_shot
from soba.bench.record_files import alone, digest, plain_name, read_object, write_record
from soba.bench.results import checked
from soba.encode.encoder import Encoder
from soba.registry import adapter_class, list_tuners

STREAM_WORK = 64  # a stream counts as much as this many images in the progress


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
        self.plan, self.folder, self.results, self.model = plan, folder, results, model
        self.tunable = tunable
        self._loader = Loader(plan, folder)
        self._trained: dict[str, Any] = {}  # prompts learned on the source set serve all others

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
                files = {}  # that are not there yet -> the work they are
                views = self.plan.views_of(method)
                for name, split in self.plan.needed(stream, method):
                    if not self._loader.is_made(name, split, views):
                        path = self._loader.path(name, split, views)
                        files[path] = len(self._loader.open(name, split)) * views
                if candidates := self.plan.candidates(method):
                    searched = self._tuning_file(stream, method)
                    if not searched.exists():
                        files[searched] = STREAM_WORK * len(candidates)
                total += sum(work for path, work in files.items() if path not in counted)
                counted |= files.keys()
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
                    if not self._missing(stream, method):
                        continue
                    views = self.plan.views_of(method)
                    for name, split in self.plan.needed(stream, method):
                        self._loader.features(name, split, views, step)
                    if views not in loaded:
                        loaded[views] = self._loader.load(stream, "test", views, step)
                    # What could not be read is part of a cell, and known only now.
                    seeds = self._missing(stream, method)
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
        return [_read_record(path) for path in paths if path.exists()]

    def _fill(
        self, stream: Stream, method: str, seeds: list[int], loaded: Loaded, step: Step
    ) -> None:
        workshop = self._workshop(stream, method, loaded, step)
        overrides, tuned_on = self._tuned(stream, method, loaded, step)
        if method == "difftpt" and self.plan.fallback:
            overrides["fallback"] = True

        def keep(record: Record) -> None:
            entries = self._entries(stream, method, loaded) | {"tuned_on": tuned_on}
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

    def _entries(self, stream: Stream, method: str, loaded: Loaded) -> Record:
        """What the grid knows of a cell and `evaluate` does not."""
        features, encoder = loaded.features, self.folder.encoder
        expected, left_out = self._counts(stream, method)
        listings = {self.plan.source.census(name, "test").listing for name in stream.datasets}
        return {
            "identity": self._identity(stream, method),
            "benchmark": self.plan.source.name,
            "model": self.model,
            "dataset": stream.name,
            "order": self.plan.order,
            "encode_seconds": loaded.encode_seconds,
            "view_policy": features.view_policy or "one view",
            "prompts": list(features.prompts or ()) or "of each domain",
            "joined": sorted(stream.datasets) if self.plan.joined else None,
            "shots": self.plan.source.shots if is_few_shot(method) else None,
            "expected": expected,
            "left_out": left_out,
            "listing": "tda" if "tda" in listings else None,
            "device": str(getattr(encoder, "device", "cpu")),  # only open_clip's may be elsewhere
            "precision": getattr(encoder, "precision", "fp32"),
            "dtype": str(features.image_features.dtype),
        }

    def _counts(self, stream: Stream, method: str) -> tuple[int | None, int]:
        """The images of the literature's test split, if known, and how many of them are not here.

        They are missing, could not be read, or TDA's listing overlooks them.
        """
        views, total, known, left_out = self.plan.views_of(method), 0, True, 0
        for name in stream.datasets:
            expected = self.plan.source.census(name, "test").expected
            left_out += len(self._loader.left_out(name, "test", views))
            if expected is None:
                known = False
                continue
            total += expected
            left_out += max(0, expected - len(self._loader.open(name, "test")))
        return total if known else None, left_out

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

    def _workshop(self, stream: Stream, method: str, loaded: Loaded, step: Step) -> Workshop:
        """The features, with all that a method needs besides."""
        if method not in list_tuners():
            return Workshop(self._loader.equipped(stream, method, loaded, step))
        source = None
        if is_few_shot(method):
            name = self.plan.source.train_set(stream.datasets[0], transfer=True)
            source, _ = self._loader.features(name, "train", self.plan.views_of(method), step)
        return Workshop(loaded.features, self.tunable, source, self._trained)

    # Tuning -----------------------------------------------------------------------------------

    def _tuned(self, stream: Stream, method: str, loaded: Loaded, step: Step) -> tuple[Record, str]:
        """The hyper-parameters that were searched, and what a record says of them."""
        if not self.plan.candidates(method):
            return {}, tuning.PAPER
        path = self._tuning_file(stream, method)
        if not path.exists():
            searched, views = loaded, self.plan.views_of(method)
            if self.plan.tune_on == "val":
                searched = self._loader.load(stream, "val", views, step)
            elif name := self.plan.tuning_set:
                searched = self._loader.load(Stream(name, (name,)), "test", views, step)
            found = tuning.search(method, self._scored(method, searched, step))
            scores = {str(alpha): score for alpha, score in found.scores.items()}
            write_record(path, {"alpha": found.alpha, "scores": scores})
        return {"alpha": _read_alpha(path)}, tuning.tuned_on(self.plan.tune_on, stream.datasets)

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
        """The seeds without a record, or with one that was made while other images were torn."""
        missing, identity = [], self._identity(stream, method)
        for seed in self.plan.seeds(method):
            path = self._record_file(stream, method, seed)
            if not path.exists() or _read_record(path).get("identity") != identity:
                missing.append(seed)
        return missing

    def _record_file(self, stream: Stream, method: str, seed: int) -> Path:
        parts = self._parts(stream, method) | {"seed": seed}
        name = f"{self.model}-{stream.name}-{method}-{self.plan.order}-{seed}-{digest(parts)}.json"
        return self.results / "records" / plain_name(name)

    def _tuning_file(self, stream: Stream, method: str) -> Path:
        parts = self._parts(stream, method) | {"factors": tuning.FACTORS, "seed": tuning.SEED}
        where, views = stream.name, self.plan.views_of(method)
        searched = self.plan.needed(stream, method)
        if self.plan.tuning_set:  # searched once, for all sets
            where, searched = self.plan.tune_on, [(self.plan.tune_on, "test")]
            file = self._loader.path(self.plan.tune_on, "test", views).name
            parts |= {"files": [file], "benchmark": None, "joined": None}
        parts["left_out"] = [self._loader.left_out(name, split, views) for name, split in searched]
        order, tune_on = self.plan.order, self.plan.tune_on
        name = f"{self.model}-{where}-{method}-{order}-{tune_on}-{digest(parts)}.json"
        return self.results / "tuning" / plain_name(name)

    def _identity(self, stream: Stream, method: str) -> str:
        """A digest of all that decides a cell but the seed, images that cannot be read included."""
        views = self.plan.views_of(method)
        left_out = [
            self._loader.left_out(name, split, views)
            for name, split in self.plan.needed(stream, method)
        ]
        return digest(self._parts(stream, method) | {"left_out": left_out})

    def _parts(self, stream: Stream, method: str) -> Record:
        """All that decides a cell, as far as it is known before an image is opened.

        What is not tuned is the same cell, whatever the others are tuned on. The names of the
        feature files stand for encoder, precision, prompts, views, images, labels and shots.
        """
        needed, views = self.plan.needed(stream, method), self.plan.views_of(method)
        return {
            "benchmark": self.plan.source.name,
            "joined": sorted(stream.datasets) if self.plan.joined else None,
            "method": method,
            "defaults": parameter_defaults(adapter_class(method)),
            "order": self.plan.order,
            "tune_on": self.plan.tune_on if self.plan.tuned(method) else "paper",
            "files": [self._loader.path(name, split, views).name for name, split in needed],
            "fallback": self.plan.fallback and method == "difftpt",
        }


def _read_record(path: Path) -> Record:
    """A record that tables can use, as it was written."""
    record = read_object(path)
    try:
        checked(record)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; remove it to run its cell again") from error
    return record


def _read_alpha(path: Path) -> float:
    """What a search has found."""
    try:
        return float(read_object(path)["alpha"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: holds no alpha; remove it to search again") from error
