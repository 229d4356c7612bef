"""What a run in shards costs: CPU seconds, bytes and memory per million images, at three sizes.

    python perf/scale.py [--rows 20000 60000 200000] [--classes 1000] [--dim 512]
    python perf/scale.py --small    2,000 rows of 50 classes, once: seconds

Features are random, around the text of their classes, and lie in .npy files: `embed` here is to
read, score and write them, without the encoder, whose cost is its own (perf/classify.py). Every
step runs in a process of its own, on one thread, so that its peak memory can be told.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import hashlib
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from soba.scale.embed import Embedder
from soba.scale.folder import ShardFolder
from soba.scale.learn import Worker, learn
from soba.scale.merge import merge
from soba.scale.predict import Predictor
from soba.scale.transduce import em_shards, save_model

SHARD = 10_000
WORKERS = 4  # whose states are merged
ROUNDS = 5


class RandomText:
    """The text tower of an encoder that is not there: a random direction for each sentence."""

    name, fingerprint, logit_scale, opened_as = "random", "random-1", 100.0, None

    def __init__(self, dim: int) -> None:
        self.width = dim

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        seeds = [np.frombuffer(hashlib.sha256(t.encode()).digest(), np.uint32) for t in texts]
        rows = np.stack([np.random.default_rng(s).standard_normal(self.width) for s in seeds])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 60_000, 200_000])
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.rows, options.classes, options.dim = [2000], 50, 64
    print(f"{options.classes} classes, {options.dim} dimensions, shards of {SHARD}, one thread")
    print("per million images:      CPU s    GB written   peak MB of the process")
    for rows in options.rows:
        with tempfile.TemporaryDirectory() as place:
            measure(Path(place), rows, options.classes, options.dim)
    return 0


def measure(place: Path, rows: int, classes: int, dim: int) -> None:
    encoder = RandomText(dim)
    names = tuple(f"thing {number}" for number in range(classes))
    write_features(place / "lake", encoder.encode_texts(list(names)), rows)
    folder = ShardFolder.make(place / "run", str(place / "lake"), encoder, names, ("a {}.",))
    for step in (embed_all, learn_parts, merge_parts, predict_all, transduce_all):
        seconds, memory, rounds = apart(step, place, folder)
        written = sum(f.stat().st_size for f in (place / OUTPUTS[step]).rglob("*.*"))
        million = 1e6 / rows
        print(
            f"{rows:8} rows  {step.__name__.partition('_')[0]:10}{seconds * million:8.1f} "
            f"{written * million / 1e9:11.3f} {memory / 1e6:14.0f}"
            f"{'' if rounds is None else f'   in {rounds} rounds'}",
            flush=True,
        )


def write_features(lake: Path, text: np.ndarray, rows: int) -> None:
    lake.mkdir()
    rng = np.random.default_rng(0)
    centres = text + 0.5 * rng.standard_normal(text.shape) / np.sqrt(text.shape[1])
    for number, start in enumerate(range(0, rows, SHARD)):
        labels = rng.integers(len(text), size=min(SHARD, rows - start))
        noise = rng.standard_normal((len(labels), text.shape[1]), np.float32)
        block = centres[labels] + 1.5 * noise / np.sqrt(text.shape[1])
        np.save(lake / f"part-{number:05d}.npy", block.astype(np.float16))


def apart(step: Callable[[Path, ShardFolder], Any], *given: Any) -> tuple[float, float, Any]:
    """CPU seconds and peak bytes of a step in a process of its own, and what it returns."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(timed, step, *given).result()


def timed(step: Callable[..., Any], *given: Any) -> tuple[float, float, Any]:
    start = time.process_time()  # other work on the machine does not count
    result = step(*given)
    seconds = time.process_time() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0, result


def embed_all(place: Path, folder: ShardFolder) -> None:
    embedder = Embedder(folder, lambda: RandomText(folder.manifest.dim))  # type: ignore[arg-type, return-value]
    for number in range(len(folder.manifest.shards)):
        embedder(number)


def learn_parts(place: Path, folder: ShardFolder) -> None:
    """All workers, one after the other: seconds of all, and the memory of one."""
    (place / "states").mkdir()
    for index in range(WORKERS):
        learn(folder, Worker("soba+", index, WORKERS), place / "states")


def merge_parts(place: Path, folder: ShardFolder) -> None:
    (place / "merged").mkdir()
    merge(sorted((place / "states").iterdir()), place / "merged" / "state.safetensors")


def predict_all(place: Path, folder: ShardFolder) -> None:
    predictor = Predictor(folder, place / "merged" / "state.safetensors", place / "answers")
    for number in range(len(folder.manifest.shards)):
        predictor(number)


def transduce_all(place: Path, folder: ShardFolder) -> int:
    """The rounds it took: it ends early where nothing moves any more."""
    (place / "model").mkdir()
    steps: list[int] = []
    model = em_shards(folder, rounds=ROUNDS, step=steps.append)
    save_model(place / "model" / "model.safetensors", model, folder)
    return len(steps) // len(folder.manifest.shards)


OUTPUTS: dict[Callable[[Path, ShardFolder], Any], str] = {
    embed_all: "run",
    learn_parts: "states",
    merge_parts: "merged",
    predict_all: "answers",
    transduce_all: "model",
}


if __name__ == "__main__":
    sys.exit(main())
