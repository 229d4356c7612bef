"""Records as `soba bench` writes them, made up: for tests of tables and of the report."""

import json
import os

import numpy as np

from soba.bench.record import Record
from soba.datasets import NAMES
from soba.encode.prompts import templates
from soba.encode.views import Views

OOD = ("imagenet", "imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")


def record(method="soba", dataset="imagenet", seed=0, accuracy=60.0, **more):
    return Record.from_json(as_json(method, dataset, seed, accuracy, **more))


def as_json(method="soba", dataset="imagenet", seed=0, accuracy=60.0, **more):
    """As JSON has it."""
    return {
        "benchmark": "ood",
        "model": "ViT-B-16",
        "order": "shuffled",
        "dataset": dataset,
        "encoder": "made up",
        "method": method,
        "seed": seed,
        "samples": 1000,
        "views": 1,
        "accuracy": accuracy,
        "calibration_error": 5.0 + seed,
        "answered": 100.0,
        "accuracy_answered": accuracy,
        "accuracy_at_coverage": np.linspace(min(99.0, accuracy + 20), accuracy, 20).tolist(),
        "accuracy_over_stream": np.linspace(accuracy - 3, accuracy + 3, 20).tolist(),
        "seconds": 0.5,
        "encode_seconds": 20.0,
        "hyper_parameters": {"logit_scale": 100.0, "alpha": 15.0},
        "tuned_on": "paper or given",
        "view_policy": "one view",
        "prompts": list(templates(dataset)) if dataset in NAMES else None,
        "provenance": "re-implementation from the paper",
        "versions": {"python": "3.12.1", "numpy": "2.1.0", "soba-tta": "0.1"},
    } | more


def policy(count, augmix=False):
    return json.dumps(Views(count, augmix).policy())


def write(folder, records, *, name="", written=1_000_000_000):
    """One file each, as if written in this second."""
    (folder / "records").mkdir(parents=True, exist_ok=True)
    for number, one in enumerate(records):
        file = folder / "records" / f"{name}{number:05d}.json"
        file.write_text(json.dumps(one.to_json() if isinstance(one, Record) else one))
        os.utime(file, (written, written))
    return folder


def grid(methods, datasets, seeds=5, start=55.0, **more):
    rng = np.random.default_rng(0)
    return [
        record(method, dataset, seed, float(start + 2 * k + 3 * j + rng.normal(0, 0.3)), **more)
        for k, method in enumerate(methods)
        for j, dataset in enumerate(datasets)
        for seed in range(seeds)
    ]
