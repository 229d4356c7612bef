"""What each term of SOBA+ is worth, and how far its constants and sizes matter.

    python perf/soba_plus_ablation.py --only terms

Runs on all feature files (.npz with labels) below SOBA_REAL_DATA, by default ../shared/data. The
files of one folder are a family (icons, whurs19, cars, pacs, caltech101, tiny_imagenet, imagenet,
cifar9), and families count alike. For SOBA+ each table has the gain over zero-shot in points of
top-1, by regime; for each variant what it changes, on the same streams. The tables in
docs/soba_plus.md are what this prints.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import numpy as np
from rich.console import Console
from rich.progress import track

import soba
from soba.adapt.soba_plus import answer, copies, fit, model, prior, stream, transduce
from soba.studies.scenarios import build, names_of
from soba.studies.stress import run_one

REGIMES = "shuffled,quarter,sorted,few,zipf,bursts 0.1"
MOST_ROWS, MANY_CLASSES = 3000, 500  # sets of many classes are not cut, and have one order
SIZES = "CANDIDATES FITTED JUDGED KEPT LEAST_KEPT FIRST LEAST_FREEDOM LEAST_VARIANCE"
MODULES = (answer, copies, fit, model, prior, stream, transduce)
Patches = Callable[[], list[Any]]  # made anew for each stream

_known: dict[int, model.Gaussians | None] = {}  # of this stream


def gaussians(shares: model.Shares, moments: np.ndarray, text: np.ndarray) -> Any:
    """The M step, once for all variants that ask for the same one: most of the time goes here."""
    asked = (shares.mass, shares.squares, shares.sums, np.trace(moments), text.sum())
    tolerances = model.LEAST_FREEDOM, model.LEAST_VARIANCE
    key = hash((*tolerances, *(np.asarray(each).tobytes() for each in asked)))
    if key not in _known:
        _known[key] = model.fit_gaussians(shares, moments, text)
    return _known[key]


def put(module: Any, name: str, value: object) -> Patches:
    return lambda: [mock.patch.object(module, name, value)]


def gaussians_with(change: Callable[[Any], Any]) -> Patches:
    def fitted(*asked: Any) -> Any:
        found = gaussians(*asked)
        return found and change(found)

    return put(fit, "fit_gaussians", fitted)


def no_text(shares: model.Shares, moments: np.ndarray, text: np.ndarray) -> Any:
    return gaussians(shares, moments, np.zeros_like(text))


def by_description() -> list[Any]:
    """Answers believe the class prior as far as EM does."""
    found = []

    def described(*asked: Any) -> float:
        found.append(prior.described(*asked))
        return found[-1]

    return [mock.patch.multiple(fit, described=described, predicted=lambda *_: found[-1])]


def by_prediction() -> list[Any]:
    """EM believes the class prior as far as answers do: a first fit finds out."""
    found = [0.0]

    def predicted(*asked: Any) -> float:
        found.append(prior.predicted(*asked))
        return found[-1]

    def fitted(*asked: Any) -> Any:
        with mock.patch.object(fit, "ROUNDS", 1):
            fit.fit(*asked)
        return fit.fit(*asked)

    patched = mock.patch.multiple(fit, predicted=predicted, described=lambda *_: found[-1])
    return [patched, *put(stream, "fit", fitted)()]


def equal_doubt() -> list[Any]:
    """The mean doubt in the sample, for all images."""
    mean = [0.0]

    def in_em(xp: Any, logits: Any, scores: Any, doubt: Any, *rest: Any) -> None:
        mean[0] = doubt.mean()
        answer.add_experts(xp, logits, scores, np.full_like(doubt, mean[0]), *rest)

    def in_answers(xp: Any, logits: Any, scores: Any, doubt: Any, *rest: Any) -> None:
        answer.pool(xp, logits, scores, np.full_like(doubt, mean[0]), *rest)

    return [*put(fit, "add_experts", in_em)(), *put(stream, "pool", in_answers)()]


def constant(name: str, value: float) -> Patches:
    """Modules import constants from each other: in all that hold it."""
    return lambda: [mock.patch.object(m, name, value) for m in MODULES if hasattr(m, name)]


def around(name: str, *values: float) -> dict[str, Patches]:
    usual = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    values = values or (type(usual)(usual / 2), usual * 2)
    return {f"{name} = {value:g}, not {usual:g}": constant(name, value) for value in values}


PARTS: dict[str, dict[str, Patches]] = {
    "terms": {
        "no class prior": put(fit, "log_prior", lambda counts: np.zeros(len(counts))),
        "class prior not tested by prediction": by_description,
        "class prior in EM tested by prediction": by_prediction,
        "CLIP never overconfident, a = 1": put(stream, "overconfidence", lambda *_: 1.0),
        "full evidence, e_k = 1": gaussians_with(lambda g: replace(g, evidence=g.evidence**0)),
        "doubt H alike for all images": equal_doubt,
        "means shrunk to their centre, not to the text": put(fit, "fit_gaussians", no_text),
        "no EM: one round": constant("ROUNDS", 1),
        "EM widens no badly known mean": gaussians_with(lambda g: replace(g, width=0 * g.width)),
        "absent classes are rivals in EM": put(
            fit, "add_experts", lambda *asked: answer.add_experts(*asked[:6])
        ),
    },
    "constants": around("WEIGHT")
    | around("ROUNDS", 2, 5)
    | around("TELLING")
    | around("GROWTH")
    | around("COPY_COSINE", 0.98, 0.995),
    "sizes": {name: put for size in SIZES.split() for name, put in around(size).items()},
}


def sets(wanted: str) -> Iterator[tuple[str, str, soba.FeatureSet]]:
    """Family, name and features; `wanted` are comma-separated parts of names."""
    root = Path(os.environ.get("SOBA_REAL_DATA", "../shared/data"))
    for path in sorted(root.rglob("*.npz")):
        name = f"{path.parent.name}/{path.stem}"
        if any(part in name for part in wanted.split(",")):
            features = soba.FeatureSet.load(path)
            if len(features) > MOST_ROWS and len(features.text_features) < MANY_CLASSES:
                rows = np.random.default_rng(0).permutation(len(features))[:MOST_ROWS]
                images, labels = features.image_features[rows], np.asarray(features.labels)[rows]
                features = replace(features, image_features=images, labels=labels, keys=None)
            yield path.parent.name, name, features


def accuracies(
    features: soba.FeatureSet, regime: str, seed: int, variants: dict[str, Patches]
) -> dict[str, float]:
    """Of zero-shot, SOBA+ and its variants, on one stream."""
    scenario, found = build(regime, features, seed), {}
    text, scale = scenario.text_features, features.logit_scale
    zero_shot = soba.ZeroShot(text, logit_scale=scale)
    found["zero-shot"] = run_one(zero_shot, scenario)["accuracy"]
    _known.clear()
    for name, patches in ({"SOBA+": list} | variants).items():
        with mock.patch.object(fit, "fit_gaussians", gaussians), ExitStack() as stack:
            for patch in patches():
                stack.enter_context(patch)
            adapter = soba.SOBAPlus(text, logit_scale=scale)
            found[name] = run_one(adapter, scenario)["accuracy"]
    return found


Run = tuple[str, str, str, int, dict[str, float]]  # family, set, regime, order, accuracies


def changes(runs: list[Run], name: str, against: str) -> dict[tuple[str, str], float]:
    """(family, regime) -> mean over its sets of the mean over orders, in points."""
    sets_of: dict[tuple[str, str], dict[str, list[float]]] = {}
    for family, set_, regime, _, scores in runs:
        orders = sets_of.setdefault((family, regime), {}).setdefault(set_, [])
        orders.append(scores[name] - scores[against])
    return {
        key: float(np.mean([np.mean(orders) for orders in by_set.values()]))
        for key, by_set in sets_of.items()
    }


def table(runs: list[Run], variants: dict[str, Patches]) -> Iterator[str]:
    """Means over families by regime, then the single families that change most."""
    families, regimes = (list(dict.fromkeys(run[at] for run in runs)) for at in (0, 2))
    yield f"| | {' | '.join(regimes)} | family that changes most | worst in one regime | best |"
    yield f"|---|{'---:|' * len(regimes)}---|---|---|"
    for name, against in ({"SOBA+": "zero-shot"} | dict.fromkeys(variants, "SOBA+")).items():
        cells = changes(runs, name, against)
        row = [np.mean([cells[family, regime] for family in families]) for regime in regimes]
        whole = {f: np.mean([cells[f, regime] for regime in regimes]) for f in families}
        most = max(families, key=lambda family: abs(whole[family]))
        ends = [end(cells, key=lambda key: cells[key]) for end in (min, max)]
        single = [(whole[most], most)] + [(cells[key], ", ".join(key)) for key in ends]
        texts = [f"{x:+.2f}" for x in row] + [f"{x:+.2f} ({where})" for x, where in single]
        yield f"| {name} | {' | '.join(texts)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--orders", type=int, default=3, help="of a set of fewer than 500 classes")
    parser.add_argument("--only", default=",".join(PARTS), help="of these, comma-separated")
    parser.add_argument("--regimes", default=REGIMES, help="comma-separated")
    parser.add_argument("--sets", default="", help="parts of names, comma-separated")
    parser.add_argument("--csv", type=Path, help="each accuracy, a row")
    options = parser.parse_args()
    parts = {part: PARTS[part] for part in options.only.split(",")}
    variants = {name: patches for part in parts.values() for name, patches in part.items()}
    jobs = [
        (*each, regime, order)
        for order in range(options.orders)
        for each in list(sets(options.sets))
        for regime in names_of(options.regimes)
        if order == 0 or len(each[2].text_features) < MANY_CLASSES
    ]
    if not jobs:
        raise SystemExit("no feature files: see SOBA_REAL_DATA and --sets")
    runs: list[Run] = []
    with options.csv.open("w", newline="") if options.csv else nullcontext() as file:
        rows = csv.writer(file) if file else None
        if rows:
            rows.writerow(["family", "set", "regime", "order", "variant", "accuracy"])
        for *each, regime, order in track(jobs, "streams", console=Console(stderr=True)):
            family, name, features = each
            runs.append(
                (family, name, regime, order, accuracies(features, regime, order, variants))
            )
            if rows:
                rows.writerows([*runs[-1][:4], *scores] for scores in runs[-1][4].items())
                file.flush()
    for part in parts.values():
        print("\n".join(table(runs, part)), end="\n\n")


if __name__ == "__main__":
    main()
