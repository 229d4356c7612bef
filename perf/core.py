"""What sharded work costs: learning without scores, known ids, refreshes, merges of states.

    python perf/core.py            minutes, and 3 GB of disk for a while
    python perf/core.py --small    every row once, on little data: seconds

As in perf/speed.py: ratios of one run on one thread, beside their bars.
"""

from __future__ import annotations

import os

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy starts its threads

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from speed import Row, features, hold, ratio, seconds, unit

import soba
from soba.adapt._ids import IdSet
from soba.adapt.merging import merge_files

WIDTH = 512


def learn(small: bool) -> list[Row]:
    n, classes = 3_000 if small else 60_000, 1000
    stream, text = features(n, classes, WIDTH)

    def zero_shot() -> None:
        (stream @ text.T).argmax(axis=1)

    def learned() -> None:
        soba.SOBAPlus(text).learn(stream, ids=np.arange(n))

    what = f"SOBAPlus.learn, {n:,} x {WIDTH}, C={classes} / zero-shot"
    return [Row(what, ratio(learned, zero_shot, 1 if small else 7), 1.8)]


def flat(small: bool) -> list[Row]:
    """Time a row, early and late in a long stream, each beside zero-shot's at that moment."""
    step, early, late = (500, 5_000, 20_000) if small else (20_000, 200_000, 2_000_000)
    stream, text = features(step, 1000, WIDTH)
    adapter, base = soba.SOBAPlus(text), []
    learned = []
    for start in range(0, late, step):
        rng = np.random.default_rng(start)
        rows = unit(stream + 0.05 * rng.normal(size=stream.shape).astype(np.float32))
        ids = np.arange(start, start + step)
        base.append(seconds(lambda rows=rows: (rows @ text.T).argmax(axis=1)))
        learned.append(seconds(lambda rows=rows, ids=ids: adapter.learn(rows, ids=ids)))
    a_row = np.array(learned) / np.array(base)
    at, few = early // step, max(2, early // step // 2)
    growth = np.median(a_row[-few:]) / np.median(a_row[at - few : at])
    return [Row(f"SOBAPlus.learn, a row at {late:,} / at {early:,}", float(growth), 1.2)]


def ids(small: bool) -> list[Row]:
    """A batch of 128 scattered ids is looked for and added, on average over what follows."""
    few, many = (1_000, 10_000) if small else (10_000, 1_000_000)
    values = np.random.default_rng(0).permutation(1 << 21) << 40

    def grown(known: IdSet, start: int, count: int) -> float:
        began = time.perf_counter()
        for at in range(start, start + count, 128):
            batch = values[at : at + 128]
            known.contains(batch)
            known.add(batch)
        return time.perf_counter() - began

    large, step, taken = _known(values[:many]), few // 2 // 128 * 128, np.zeros(2)
    for start in range(many, many * 3 // 2, step):  # in turns
        taken += grown(large, start, step), grown(_known(values[:few]), few, step)
    what = f"128 scattered ids checked and added at {many:,} known / at {few:,}"
    return [Row(what, taken[0] / taken[1], 3.0)]


def _known(values: np.ndarray) -> IdSet:
    known = IdSet()
    known.add(values)
    return known


def refresh(small: bool) -> list[Row]:
    """A refresh of a full sample, beside CLIP's product of all that is kept."""
    classes = 100 if small else 1000
    text = unit(np.random.default_rng(0).normal(size=(classes, WIDTH)).astype(np.float32))
    adapter = full(text)
    kept = adapter.sample.features
    slower = ratio(adapter.refresh, lambda: kept @ text.T, 1 if small else 7)
    what = f"SOBAPlus.refresh, {len(kept):,} kept, C={classes} / the product of these"
    return [Row(what, slower, 1.2)]


def merge(small: bool) -> list[Row]:
    shards, classes = (4, 50) if small else (16, 5000)
    text = unit(np.random.default_rng(0).normal(size=(classes, WIDTH)).astype(np.float32))
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / str(shard)) for shard in range(shards)]
        for shard, path in enumerate(paths):
            full(text, shard).save(path)
            kept = os.path.getsize(path)
        read, merged = (_measured(verb, paths) for verb in ("read", "merge"))
    what = f"merge of {shards} state files, C={classes}: "
    return [
        Row(f"{what}seconds / those of loading them", merged["seconds"] / read["seconds"], 1.5),
        Row(f"{what}peak memory / one state", merged["peak"] / kept, 3.0),
    ]


def full(text: np.ndarray, shard: int = 0) -> soba.SOBAPlus:
    """An adapter whose sample is full."""
    rng, adapter = np.random.default_rng(shard), soba.SOBAPlus(text)
    sample = adapter._samples["sample"].copy()
    rows = np.arange(sample.size)
    images = _images(text[rng.integers(len(text), size=sample.size)], rng)
    sample.update(images, (shard << 32) + rows, rows)
    state = adapter.state()
    state["arrays"] |= {f"sample.{name}": array for name, array in sample.arrays().items()}
    state["arrays"]["seen"] = np.array([[shard << 32, (shard << 32) + sample.size]])
    return soba.SOBAPlus.from_state(state)


def _images(centres: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal(size=centres.shape, dtype=np.float32)
    return unit(0.7 * centres + noise * np.float32(WIDTH**-0.5))


def _measured(verb: str, paths: list[str]) -> dict[str, float]:
    """Seconds and bytes that some work on state files takes, in a process of its own."""
    run = [sys.executable, __file__, "--measure", verb, *paths]
    return json.loads(subprocess.run(run, capture_output=True, check=True, text=True).stdout)


def measure(verb: str, *paths: str) -> None:
    def read() -> None:
        for path in paths:
            soba.SOBAPlus.load(path)

    def merged() -> None:
        merge_files(soba.SOBAPlus, paths)

    before = _status("VmRSS")
    taken = seconds({"read": read, "merge": merged}[verb])
    print(json.dumps({"seconds": taken, "peak": _status("VmHWM") - before}))


def _status(name: str) -> int:
    """Bytes that the system says of this process: VmRSS, now, or VmHWM, at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="run everything once, hold no bar")
    parser.add_argument(
        "--only", default="learn,flat,ids,refresh,merge", help="parts, comma-separated"
    )
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(*arguments.measure)
        return
    hold(globals(), arguments.only, arguments.small)


if __name__ == "__main__":
    main()
