"""What it costs to keep a stream in a database: memory, disk, and time beside one in memory.

    python perf/durable.py            minutes
    python perf/durable.py --small    every row once, on little data: seconds

As in perf/speed.py: ratios of one run on one thread, beside their bars.
"""

from __future__ import annotations

import os

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy starts its threads

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from core import _status
from speed import Row, features, hold, unit

import soba
import soba.encode.encoder
from soba.encode.preprocess import Preprocess

WIDTH, CLASSES, STEP = 256, 1000, 500


class NoEncoder(soba.encode.encoder.Encoder):
    """The features are given; a stream asks for the name of what made them."""

    def __init__(self, width: int) -> None:
        self.name = self.fingerprint = "given"
        self.width, self.logit_scale, self.preprocess = width, 100.0, Preprocess(size=4)

    def encode_pixels(self, pixels: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        raise NotImplementedError


def opened(url: str, text: np.ndarray, **options: object) -> soba.DurableStream:
    names = [f"class {label}" for label in range(len(text))]
    adapter = soba.SOBAPlus(text)
    encoder = NoEncoder(text.shape[1])
    classifier = soba.Classifier(encoder, names, method=adapter, templates=())
    return soba.DurableStream(url, "stream", classifier, **options)


def batches(stop: int, rows: np.ndarray) -> Iterator[tuple[range, np.ndarray]]:
    """Numbers of samples, and features that are new each time."""
    for start in range(0, stop, STEP):
        rng = np.random.default_rng(start)
        noise = rng.normal(size=rows.shape).astype(np.float32)
        yield range(start, start + STEP), unit(rows + 0.05 * noise)


def long(small: bool) -> list[Row]:
    """Memory and disk after many samples, where a tenth of the ids are remembered."""
    early, late = (1_000, 5_000) if small else (100_000, 1_000_000)
    rows, text = features(STEP, CLASSES, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        stream = opened(f"sqlite:///{folder}/db", text, remember=early)
        memory, begun = {}, time.perf_counter()
        for numbers, batch in batches(late, rows):
            stream.learn(batch, ids=numbers)
            memory[numbers.stop] = _status("VmRSS")
        speed = late / (time.perf_counter() - begun)
        print(f"{speed:,.0f} samples/s, {memory[late] / 1e6:.0f} MB at {late:,}", flush=True)
        stream.to_classifier().save(f"{folder}/state")
        state = os.path.getsize(f"{folder}/state")
        kept = _kept_for_rollback(f"{folder}/db")
        stream.close()
        disk = sum(path.stat().st_size for path in Path(folder).glob("db*"))
        print(f"database {disk / 1e6:.1f} MB, {kept / 1e6:.1f} MB of it for rollback; "
              f"state file {state / 1e6:.1f} MB")  # fmt: skip
    what = f"memory at {late:,} samples / at {early:,}"
    return [
        Row(what, memory[late] / memory[early], 1.1),
        Row("database, without what is kept for rollback / state file", (disk - kept) / state, 3.0),
    ]


def _kept_for_rollback(path: str) -> int:
    connection = sqlite3.connect(path)
    sizes = connection.execute("SELECT LENGTH(blob) FROM snapshot ORDER BY version").fetchall()
    connection.close()
    return sum(size for (size,) in sizes[:-1])


def beside_memory(small: bool) -> list[Row]:
    """Time of batches in a database, synced each, beside an adapter in memory."""
    count = 2_000 if small else 20_000
    rows, text = features(STEP, CLASSES, WIDTH)
    plain, spent = soba.SOBAPlus(text), [0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        stream = opened(f"sqlite:///{folder}/db", text)
        for numbers, batch in batches(count, rows):
            for place, adapt in enumerate((plain.adapt, stream.adapt)):
                begun = time.perf_counter()
                adapt(batch, ids=numbers)
                spent[place] += time.perf_counter() - begun
        stream.close()
    return [Row(f"batches of {STEP} in SQLite / in memory", spent[1] / spent[0], 3.0)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="run everything once, hold no bar")
    parser.add_argument("--only", default="beside_memory,long", help="parts, comma-separated")
    arguments = parser.parse_args()
    hold(globals(), arguments.only, arguments.small)


if __name__ == "__main__":
    main()
