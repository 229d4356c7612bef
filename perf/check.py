"""How often `soba check` is right: a Markdown table over feature files with all labels known.

    python perf/check.py rn50.npz cars.npz --names "RN50,cars" --per-class 3 --draws 200

Each draw labels some images of each class by chance and asks for the verdict. Where it is "too few
to tell", as many more images as it asks for are labelled, by chance among those that are answered
differently, and it is asked again. "unseen" is the gain on images that SOBA+ did not learn from:
it learns from one half and answers the other, and the reverse. The tables in docs/check.md are what
this prints.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

import soba
from soba.studies.check import (
    Answers,
    answer_all,
    check,
    few_per_class,
    images_to_label,
    tally,
)

HEADINGS = (
    "set",
    "images",
    "labelled",
    "differ",
    "gain",
    "unseen",
    "yes",
    "no",
    "too few",
    "then yes",
    "then no",
    "in the interval",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--names")
    parser.add_argument("--per-class", type=int, default=3)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transductive", action="store_true")
    options = parser.parse_args()
    names = options.names.split(",") if options.names else [path.stem for path in options.files]
    print(f"| {' | '.join(HEADINGS)} |\n|---{'|---:' * (len(HEADINGS) - 1)}|")
    for path, name in zip(options.files, names, strict=True):
        print(f"| {' | '.join([name, *row(soba.FeatureSet.load(path), options)])} |", flush=True)
    print(f"\nfalse yes, asked until there is a verdict: {false_yes_in_turns():.1%}")


def row(features: soba.FeatureSet, options: argparse.Namespace) -> list[str]:
    labels = np.asarray(features.labels, np.int64)
    answers = answer_all(features, transductive=options.transductive)
    gain = 100.0 * (np.mean(answers.adapted == labels) - np.mean(answers.zero_shot == labels))
    first, then, inside, used = Counter[str](), Counter[str](), 0, 0
    for seed in range(options.seed, options.seed + options.draws):
        few = few_per_class(labels, options.per_class, seed=seed)
        checked = check(tally(answers, few))
        used = checked.tally.labelled
        first[checked.verdict] += 1
        inside += checked.gain.low <= gain <= checked.gain.high
        if checked.more:
            more = images_to_label(answers, few, checked.more, seed=seed)
            few[more] = labels[more]
            then[check(tally(answers, few)).verdict] += 1
    verdicts = [str(first[verdict]) for verdict in ("yes", "no", "too few to tell")]
    later = [str(then[verdict]) if then else "" for verdict in ("yes", "no")]
    counts = [len(labels), used, int(answers.differ.sum())]
    points = [f"{gain:+.2f}", f"{unseen_gain(features, labels, options.transductive):+.2f}"]
    return [*map(str, counts), *points, *verdicts, *later, str(inside)]


def unseen_gain(features: soba.FeatureSet, labels: np.ndarray, transductive: bool) -> float:
    """Points gained on one half of the images by what was learned from the other; both ways."""
    if transductive:
        return float("nan")
    order = np.random.default_rng(0).permutation(len(labels))
    half, won = len(order) // 2, 0
    for seen, unseen in ((order[:half], order[half:]), (order[half:], order[:half])):
        adapter = soba.SOBAPlus(features.text_features, logit_scale=features.logit_scale)
        adapter.learn(features.image_features[seen])
        rows = features.image_features[unseen]
        plain = soba.ZeroShot(features.text_features, logit_scale=features.logit_scale)
        won += int((adapter.refresh().predict(rows) == labels[unseen]).sum())
        won -= int((plain.predict(rows) == labels[unseen]).sum())
    return 100.0 * won / len(labels)


def false_yes_in_turns(trials: int = 300) -> float:
    """How often "yes" is said of images that gain nothing by who labels and asks in turns."""
    population = np.repeat([0, 1, 2], [60, 60, 40])  # won by adapted, by zero-shot, by neither
    zero_shot, adapted = np.ones(len(population), int), np.zeros(len(population), int)
    answers = Answers(zero_shot, adapted, None)
    said = 0
    for seed in range(trials):
        truth = np.random.default_rng(seed).permutation(population)
        labels = np.full(len(truth), -1)
        while (checked := check(tally(answers, labels))).more:
            more = images_to_label(answers, labels, checked.more, seed=seed)
            labels[more] = truth[more]
        said += checked.verdict == "yes"
    return said / trials


if __name__ == "__main__":
    main()
