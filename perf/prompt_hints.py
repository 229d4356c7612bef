"""How often the hints of the prompt check are right: a Markdown table over labelled feature files.

    python perf/prompt_hints.py rn50.npz cars.npz --names "RN50,cars"

A hint on a class name is right if CLIP alone gets fewer than half of that class's images right; a
pair of names is, if its two classes are confused more than five times as often as a mean pair.
Hints come from all images, and from the samples that a state keeps after one shuffled stream.
Templates, where a file has some, are ranked without labels, and by their true accuracy. The figures
in docs/check.md are what this prints.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import soba
from soba.studies.check import Answers, answer_all
from soba.studies.inspection import inspect
from soba.studies.prompts import PromptHints, prompt_hints, rank_templates

HEADINGS = (
    "set",
    "hints on names",
    "right",
    "such classes in all",
    "from a state: hints",
    "right",
    "pairs alike",
    "right",
    "classes unused",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--names")
    options = parser.parse_args()
    names = options.names.split(",") if options.names else [path.stem for path in options.files]
    print(f"| {' | '.join(HEADINGS)} |\n|---{'|---:' * (len(HEADINGS) - 1)}|")
    notes = []
    for path, name in zip(options.files, names, strict=True):
        features = soba.FeatureSet.load(path)
        answers = answer_all(features)
        print(f"| {name} | {' | '.join(map(str, numbers(features, answers)))} |", flush=True)
        notes += [f"{name}: {line}" for line in of_templates(features, answers)]
    print("", *notes, sep="\n")


def numbers(features: soba.FeatureSet, answers: Answers) -> list[int]:
    labels, classes = np.asarray(features.labels), features.n_classes
    confused = np.zeros((classes, classes))
    np.add.at(confused, (labels, answers.zero_shot), 1.0)
    confused /= confused.sum(axis=1, keepdims=True)
    low = np.flatnonzero(np.diag(confused) < 0.5)
    rows = np.asarray(features.image_features, np.float32)
    hints = prompt_hints(features.text_features, rows, answers.zero_shot, answers.adapted)
    kept = of_state(features)
    mean = (confused.sum() - np.trace(confused)) / (classes * (classes - 1))
    pairs = [confused[p.first, p.second] + confused[p.second, p.first] for p in hints.alike]
    return [
        len(hints.contradicted),
        sum(hint.label in low for hint in hints.contradicted),
        len(low),
        len(kept.contradicted),
        sum(hint.label in low for hint in kept.contradicted),
        len(pairs),
        sum(both / 2 > 5 * mean for both in pairs),
        len(hints.unused),
    ]


def of_state(features: soba.FeatureSet) -> PromptHints:
    """From what SOBA+ keeps of one shuffled stream."""
    adapter = soba.SOBAPlus(features.text_features, logit_scale=features.logit_scale)
    adapter.adapt(features.image_features[np.random.default_rng(0).permutation(len(features))])
    samples = inspect(adapter).samples
    answers = samples.zero_shot, samples.adapted
    return prompt_hints(features.text_features, samples.features, *answers)


def of_templates(features: soba.FeatureSet, answers: Answers) -> list[str]:
    """What ranking templates without labels is worth, in words."""
    if features.prompt_features is None or features.prompts is None:
        return []
    rows = np.asarray(features.image_features, np.float32)
    each = np.asarray(features.prompt_features, np.float32)
    each /= np.linalg.norm(each, axis=2, keepdims=True)
    place = {template: number for number, template in enumerate(features.prompts)}

    def accuracy(text: np.ndarray) -> float:
        return 100.0 * float(np.mean((rows @ text.T).argmax(axis=1) == features.labels))

    true = np.array([accuracy(text) for text in each])
    lines = []
    for what, said in (("adapted answers", answers.adapted), ("zero-shot", answers.zero_shot)):
        ranked = [place[t.template] for t in rank_templates(features.prompts, each, rows, said)]
        ranks = np.argsort(np.argsort(-true))[ranked]
        correlation = np.corrcoef(np.arange(len(ranks)), ranks)[0, 1]
        mean = each[ranked[:10]].mean(axis=0)
        mean /= np.linalg.norm(mean, axis=1, keepdims=True)
        lines.append(
            f"by agreement with {what}: rank correlation {correlation:.2f}, first "
            f"{true[ranked[0]]:.1f}, mean of the first ten {accuracy(mean):.1f}"
        )
    best, middle, worst = true.max(), np.median(true), true.min()
    lines.append(f"templates: best {best:.1f}, median {middle:.1f}, worst {worst:.1f}")
    return lines


if __name__ == "__main__":
    main()
