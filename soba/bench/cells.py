"""Cells: which record is wanted, as a value, and the pure function that makes the record.

A plan is data sets x methods x orders. `cells_of` writes it out, a cell for each record, and
`run_cell` makes a record of a cell, whoever calls it and wherever: both the cell and the
`soba.bench.places.Places` it is run in can be pickled. Features and searches that cells
share are files, made by the first cell that needs them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from soba.adapt.base import parameter_defaults
from soba.bench import tuning
from soba.bench.evaluate import evaluate
from soba.bench.loading import Loaded, Step, no_step
from soba.bench.method_factory import MethodFactory
from soba.bench.orders import JOINED, arrange
from soba.bench.paper_settings import OFFICIAL, unlike_the_paper
from soba.bench.places import Places
from soba.bench.plan import Plan
from soba.bench.record import Record, digest, plain_name, read_object, write_object
from soba.feature_set import FeatureSet
from soba.registry import adapter_class, card

STREAM_WORK = 64  # a stream counts as much as this many images in the progress

More = Callable[[np.ndarray, np.ndarray], dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """Which record is wanted: one method on one stream in one order.

    Attributes
    ----------
    dataset
        What is streamed: a data set, or all of a benchmark's joined, whose names are `datasets`.
    views
        Of each image.
    tune_on
        What alpha is searched on; "paper" where nothing is searched.
    features
        (data set, split, name of the feature file) of all that it is made of. The names stand for
        encoder, precision, prompts, views, images, labels and shots.
    constants
        What the official code of the method sets for this data set.
    fallback
        Do without generated views.
    """

    benchmark: str
    model: str
    dataset: str
    datasets: tuple[str, ...]
    method: str
    seed: int
    order: str
    views: int
    tune_on: str
    features: tuple[tuple[str, str, str], ...]
    constants: tuple[tuple[str, float], ...] = ()
    fallback: bool = False

    @property
    def joined(self) -> bool:
        """Whether several data sets are one stream."""
        return self.order in JOINED

    @property
    def parts(self) -> dict[str, Any]:
        """All that decides the record but the seed, as far as it is known before any image."""
        return {
            "benchmark": self.benchmark,
            "joined": sorted(self.datasets) if self.joined else None,
            "method": self.method,
            "defaults": parameter_defaults(adapter_class(self.method)),
            "order": self.order,
            "tune_on": self.tune_on,
            "files": [file for _, _, file in self.features],
            "fallback": self.fallback,
        } | ({"constants": dict(self.constants)} if self.constants else {})

    @property
    def file_name(self) -> str:
        """Of the record."""
        words = (self.model, self.dataset, self.method, self.order, self.seed)
        code = digest(self.parts | {"seed": self.seed})
        return plain_name(f"{'-'.join(map(str, words))}-{code}.json")

    def identity(self, places: Places) -> str:
        """A digest of all that decides the record but the seed, unreadable images included."""
        return digest(self.parts | {"left_out": _left_out(self.features, self.views, places)})


def cells_of(plan: Plan, places: Places) -> list[Cell]:
    """The cells of a plan, stream by stream; no image is opened."""
    cells = []
    for stream in plan.streams:
        for method in plan.methods:
            views = plan.views_of(method)
            features = tuple(
                (name, split, places.loader.path(name, split, views).name)
                for name, split in plan.needed(stream, method)
            )
            cell = Cell(
                benchmark=plan.source.name,
                model=places.model.name,
                dataset=stream.name,
                datasets=stream.datasets,
                method=method,
                seed=0,
                order=plan.order,
                views=views,
                # What is not tuned is the same cell, whatever the others are tuned on.
                tune_on=plan.tune_on if plan.tuned(method) else "paper",
                features=features,
                constants=tuple(plan.constants(stream, method).items()),
                fallback=plan.fallback and "fallback" in parameter_defaults(adapter_class(method)),
            )
            cells += [dataclasses.replace(cell, seed=seed) for seed in plan.seeds(method)]
    return cells


def run_cell(cell: Cell, places: Places, step: Step = no_step) -> Record:
    """The record of a cell; the same wherever it is run, but for the seconds."""
    _check_places(cell, places)
    for dataset, split, _ in cell.features:
        if not places.loader.is_made(dataset, split, cell.views):
            places.loader.features(dataset, split, cell.views, step)
    loaded = places.loader.load(cell.datasets, "test", cell.views, step)
    factory = _factory(cell, loaded, places, step)
    settings, tuned_on = _settings(cell, loaded, places, step)
    if cell.fallback:
        settings["fallback"] = True
    by_domain = _by_domain(cell, loaded) if cell.joined else _nothing_more
    record = _streamed(cell, factory, loaded, cell.seed, settings, by_domain)
    if card(cell.method).few_shot and not card(cell.method).tunes_prompts:
        tuned_on = _searched_itself(cell, record.tuned_on)
    unlike = unlike_the_paper(cell.method, record.hyper_parameters, cell.dataset)
    return dataclasses.replace(
        record, tuned_on=tuned_on, unlike_the_paper=unlike, **_known_of(cell, loaded, places)
    )


def search_file(cell: Cell, places: Places) -> str | None:
    """The name of the file of the search that a cell waits for; None where nothing is searched."""
    if not _candidates(cell):
        return None
    parts = cell.parts | {"factors": tuning.FACTORS, "seed": tuning.SEED}
    where, searched = cell.dataset, cell.features
    if places.source.knows(cell.tune_on):  # searched once, for all sets
        file = places.loader.path(cell.tune_on, "test", cell.views).name
        where, searched = cell.tune_on, ((cell.tune_on, "test", file),)
        parts |= {"files": [file], "benchmark": None, "joined": None}
    parts["left_out"] = _left_out(searched, cell.views, places)
    words = (cell.model, where, cell.method, cell.order, cell.tune_on, digest(parts))
    return plain_name(f"{'-'.join(words)}.json")


def search_work(cell: Cell) -> int:
    """What `run_cell` counts up to while it searches."""
    return STREAM_WORK * len(_candidates(cell))


def _check_places(cell: Cell, places: Places) -> None:
    """The record says what the cell says: it must be made of the very features."""
    for dataset, split, file in cell.features:
        here = places.loader.path(dataset, split, cell.views).name
        if here != file:
            raise ValueError(
                f"the cell of {cell.method} on {cell.dataset} was made for the features {file}, "
                f"and here they are {here}: of another encoder, or of other prompts, views or "
                f"images of {dataset} ({split})"
            )


# What a cell is streamed with -----------------------------------------------------------------


def _factory(cell: Cell, loaded: Loaded, places: Places, step: Step) -> MethodFactory:
    """The features, with all that a method needs besides."""
    if not card(cell.method).tunes_prompts:
        return MethodFactory(_equipped(cell, loaded, places, step))
    tunable, trained = places.model.tunable, places.trained
    if not card(cell.method).few_shot:
        return MethodFactory(loaded.features, tunable, None, trained)
    name = places.source.train_set(cell.datasets[0], transfer=True)
    source, _ = places.loader.features(name, "train", cell.views, step)
    file = places.loader.path(name, "train", cell.views)
    kept = places.results / "tuning" / plain_name(f"{cell.model}-{cell.method}-{file.stem}")
    return MethodFactory(loaded.features, tunable, source, trained, kept)


def _equipped(cell: Cell, loaded: Loaded, places: Places, step: Step) -> FeatureSet:
    """The features with prompts and labelled samples, for the methods that take them."""
    features, loader = loaded.features, places.loader
    if card(cell.method).per_prompt:
        prompts = loader.prompt_features(cell.datasets[0])
        features = dataclasses.replace(features, prompt_features=prompts)
    if not card(cell.method).few_shot:
        return features
    samples, labels = loader.shots(cell.datasets, loaded, cell.views, step)
    features = dataclasses.replace(features, support_features=samples, support_labels=labels)
    if cell.tune_on not in ("val", "test"):
        return features
    held_out = loader.load(cell.datasets, cell.tune_on, cell.views, step).features
    return dataclasses.replace(
        features, val_features=held_out.image_features, val_labels=held_out.labels
    )


def _nothing_more(order: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
    return {}


def _by_domain(cell: Cell, loaded: Loaded) -> More:
    """The accuracy on each domain of a joined stream."""
    labels = loaded.features.labels
    assert labels is not None

    def more(order: np.ndarray, logits: np.ndarray) -> dict[str, Any]:
        hits = logits.argmax(axis=1) == labels[order]
        domains = loaded.domains[order]
        scores = {n: 100.0 * float(hits[domains == i].mean()) for i, n in enumerate(cell.datasets)}
        return {"accuracy_per_domain": scores}

    return more


def _streamed(
    cell: Cell,
    factory: MethodFactory,
    loaded: Loaded,
    seed: int,
    settings: dict[str, Any],
    more: More = _nothing_more,
) -> Record:
    """The one place where streams run."""
    features, labels = factory.features, factory.features.labels
    assert labels is not None
    [record] = evaluate(
        features,
        [cell.method],
        orders=[seed],
        overrides=settings,
        factory=factory,
        arrange=lambda seed: arrange(cell.order, labels, features.n_classes, seed, loaded.domains),
        more=more,
    )
    return record


def _known_of(cell: Cell, loaded: Loaded, places: Places) -> dict[str, Any]:
    """What is known of a cell and `evaluate` does not know."""
    features, encoder = loaded.features, places.model.encoder
    expected, left_out = _counts(cell, places)
    listings = {places.source.census(name, "test").listing for name in cell.datasets}
    return {
        "identity": cell.identity(places),
        "benchmark": cell.benchmark,
        "model": cell.model,
        "dataset": cell.dataset,
        "order": cell.order,
        "encode_seconds": loaded.encode_seconds,
        "view_policy": features.view_policy or "one view",
        "prompts": list(features.prompts or ()) or "of each domain",
        "joined": sorted(cell.datasets) if cell.joined else None,
        "shots": places.source.shots if card(cell.method).few_shot else None,
        "expected": expected,
        "left_out": left_out,
        "listing": next(iter(listings - {None}), None),
        "device": encoder.device,
        "precision": encoder.precision,
        "dtype": str(features.image_features.dtype),
    }


def _counts(cell: Cell, places: Places) -> tuple[int | None, int]:
    """The images of the literature's test split, if known, and how many of them are not here.

    They are missing, could not be read, or TDA's listing overlooks them.
    """
    total, known, left_out = 0, True, 0
    for name in cell.datasets:
        expected = places.source.census(name, "test").expected
        left_out += len(places.loader.left_out(name, "test", cell.views))
        if expected is None:
            known = False
            continue
        total += expected
        left_out += max(0, expected - len(places.loader.open(name, "test")))
    return total if known else None, left_out


def _left_out(
    features: tuple[tuple[str, str, str], ...], views: int, places: Places
) -> list[tuple[str, ...]]:
    return [places.loader.left_out(name, split, views) for name, split, _ in features]


# Tuning ---------------------------------------------------------------------------------------


def _candidates(cell: Cell) -> tuple[float, ...]:
    return () if cell.tune_on == "paper" else tuning.candidates(cell.method)


def _settings(cell: Cell, loaded: Loaded, places: Places, step: Step) -> tuple[dict[str, Any], str]:
    """The hyper-parameters that are not the method's own, and what a record says of them."""
    if cell.constants:
        return dict(cell.constants), OFFICIAL
    name = search_file(cell, places)
    if name is None:
        return {}, tuning.PAPER
    path = places.results / "tuning" / name
    if not path.exists():
        searched = loaded
        if cell.tune_on == "val":
            searched = places.loader.load(cell.datasets, "val", cell.views, step)
        elif places.source.knows(cell.tune_on):
            searched = places.loader.load((cell.tune_on,), "test", cell.views, step)
        outcome = tuning.search(cell.method, _scored(cell, searched, step))
        scores = {str(alpha): score for alpha, score in outcome.scores.items()}
        write_object(path, {"alpha": outcome.alpha, "scores": scores})
    try:
        alpha = float(read_object(path)["alpha"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: holds no alpha; remove it to search again") from error
    return {"alpha": alpha}, tuning.tuned_on(cell.tune_on, cell.datasets)


def _scored(cell: Cell, searched: Loaded, step: Step) -> Callable[[float], float]:
    """How good an alpha is, on one stream of its own."""
    blind = cell.tune_on == "stream"
    more = tuning.NeighbourAgreement(searched.features).entry if blind else _nothing_more

    def run(alpha: float) -> float:
        factory = MethodFactory(searched.features)
        record = _streamed(cell, factory, searched, tuning.SEED, {"alpha": alpha}, more)
        step(f"alpha of {cell.method} on {cell.tune_on}", STREAM_WORK)
        return float(getattr(record, "agreement" if blind else "accuracy"))

    return run


def _searched_itself(cell: Cell, said: str) -> str:
    """The few-shot methods search on what they are given."""
    if said != "validation":
        return tuning.PAPER
    return tuning.TEST_LABELS if cell.tune_on == "test" else "val"
