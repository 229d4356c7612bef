"""All stream methods and all that see whole sets, on some feature files: a Markdown table.

    python perf/rivals.py rn50.npz photo.npz+art.npz --names "RN50,two domains"

Files joined by + are one stream of several domains. Online figures are means over shuffled orders,
the same orders for all methods; transductive ones are of one run, since order is nothing to them.
The table in docs/rivals.md is what this prints.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import numpy as np

import soba
from soba.bench.evaluate import evaluate, summarise, transduces
from soba.registry import card

# The best baselines first, then the rivals; those of the paper's methods that are ablations stay
# out of this table.
ONLINE = ("tda", "soba", "soba+", "etta", "oga", "adapt", "dota", "pta")


def feature_set(paths: str) -> soba.FeatureSet:
    """One file, or several of the same classes as one stream."""
    first, *others = [soba.FeatureSet.load(Path(path)) for path in paths.split("+")]
    for other in others:
        if not np.allclose(first.text_features, other.text_features, atol=1e-5):
            raise SystemExit(f"{paths}: these files have different text features")
    parts = [first, *others]
    return dataclasses.replace(
        first,
        image_features=np.concatenate([part.image_features for part in parts]),
        labels=np.concatenate([part.labels for part in parts if part.labels is not None]),
        keys=None,
    )


def column(paths: str, methods: tuple[str, ...], orders: int) -> dict[tuple[str, bool], str]:
    """(method, whether it saw the whole set) -> what stands in the table."""
    features = feature_set(paths)
    able = [name for name in soba.list_methods() if transduces(name)]

    def said(name: str, seed: int) -> None:
        print(f"{paths}: {name}, order {seed}", file=sys.stderr)

    records = evaluate(features, ("zero-shot", *methods), orders=orders, step=said)
    records += evaluate(features, able, transductive=True, step=said)
    cells = {}
    for row in summarise(records):
        score, gain = f"{row['accuracy_mean']:.2f}", f"{row['gain']:+.2f}"
        spread = f" ±{row['accuracy_std']:.2f}" if row["orders"] > 1 else ""
        plain = row["method"] == "zero-shot"
        cells[row["method"], row["transductive"]] = score if plain else f"{gain}{spread}"
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FEATURES")
    parser.add_argument("--names", help="comma-separated headings; default: the files' names")
    parser.add_argument("--methods", default=",".join(ONLINE), help="that run online")
    parser.add_argument("--orders", type=int, default=5)
    options = parser.parse_args()
    names = [paths.split("+")[0] for paths in options.files]
    names = options.names.split(",") if options.names else [Path(name).stem for name in names]
    methods = tuple(options.methods.split(","))
    columns = [column(paths, methods, options.orders) for paths in options.files]
    rows = list(dict.fromkeys(key for cells in columns for key in cells))
    print(f"| method | {' | '.join(names)} |")
    print("|---|" + "---:|" * len(columns))
    for method, at_once in rows:
        title = card(method).title + (" (transductive)" if at_once else "")
        shown = " | ".join(cells.get((method, at_once), "") for cells in columns)
        print(f"| {title} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
