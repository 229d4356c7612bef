"""Speed and memory of the adapters, as ratios measured in one run on one thread.

    python perf/speed.py            the table of the design: minutes
    python perf/speed.py --small    every row once, on little data: seconds

Each row prints its ratio beside its bar; the command fails if a ratio passes its bar. A ratio
divides two times of the same run, taken in turns, so a busy machine slows both. With `--small`
the rows show that everything runs, and no bar holds: so little data measures nothing.
"""

from __future__ import annotations

import os

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy starts its threads

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import soba

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
from reference import ReferenceTDA


@dataclass
class Row:
    what: str
    value: float
    bar: float
    unit: str = "x"
    at_least: bool = False  # the bar is a minimum

    def passes(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{self.what:<66}{self.value:>9.2f}{self.unit:<3} {sign} {self.bar:g}{self.unit}"


def features(n: int, classes: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A stream with clusters, so that all classes fill up; and text features for it."""
    rng = np.random.default_rng(0)
    text = rng.normal(size=(classes, width)).astype(np.float32)
    stream = text[rng.integers(classes, size=n)] * 0.5
    stream += rng.normal(size=(n, width)).astype(np.float32)
    return (unit(stream), unit(text))


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(work: Callable[[], object], base: Callable[[], object], rounds: int) -> float:
    """Median of work / base, one after the other, several times."""
    base()
    return float(np.median([seconds(work) / seconds(base) for _ in range(rounds)]))


def bulk(small: bool) -> list[Row]:
    n, classes, width = 5_000 if small else 50_000, 1000, 512
    stream, text = features(n, classes, width)

    def zero_shot() -> None:
        (stream @ text.T).argmax(axis=1)

    def soba_tenths() -> None:
        soba.SOBA(text, refresh="tenths", total=n).adapt(stream)

    def soba_plus() -> None:
        soba.SOBAPlus(text).adapt(stream)

    em_rounds = 3

    def transduced() -> None:
        soba.SOBAPlus(text, logit_scale=20.0).transduce(stream, rounds=em_rounds, out=logits)

    logits = np.empty((n, classes), np.float32)
    size = f"{n:,} x {width}, C={classes}"
    rounds = 1 if small else 7
    a_round = ratio(transduced, zero_shot, 1 if small else 3) / em_rounds  # with the last scoring
    return [
        Row(f"SOBA.adapt, tenths, {size} / zero-shot", ratio(soba_tenths, zero_shot, rounds), 4.0),
        Row(f"SOBAPlus.adapt, {size} / zero-shot", ratio(soba_plus, zero_shot, rounds), 3.5),
        Row(f"SOBAPlus.transduce, a round, {size} / zero-shot", a_round, 6.0),
    ]


def one_by_one(small: bool) -> list[Row]:
    n, classes, width = 1_500 if small else 50_000, 1000, 512
    stream, text = features(n, classes, width)
    passes = 1 if small else 3
    ours, base = times_a_row(soba.SOBA(text), stream, passes)
    what = f"SOBA.adapt one by one, {n:,} rows, growth: "
    tail = np.quantile(ours, 0.999) / np.median(base)
    plus, plus_base = times_a_row(soba.SOBAPlus(text), stream, passes)
    return [
        Row(f"{what}p50 / zero-shot p50", np.median(ours) / np.median(base), 4.0),
        Row(f"{what}p99.9 / zero-shot p50", tail, 10.0),
        Row(f"{what}slowest call", ours.max() * 1e3, 150.0, "ms"),
        Row(
            f"SOBAPlus.adapt one by one, {n:,} rows: p50 / zero-shot p50",
            np.median(plus) / np.median(plus_base),
            3.5,
        ),
    ]


def times_a_row(
    adapter: soba.Adapter, stream: np.ndarray, passes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that each row takes an adapter, and zero-shot's product and softmax, in turns.

    The best of some passes for each row: every pass does the same work at the same row, so what it
    takes longer in one of them is the machine's doing. A thousandth of the rows are few enough that
    interruptions alone would set their percentile.
    """
    scaled = 100.0 * adapter.text_features
    ours, base = np.full((2, len(stream)), np.inf)
    for _ in range(passes):
        adapter.reset()
        for i in range(len(stream)):
            row = stream[i : i + 1]
            start = time.perf_counter()
            logits = row @ scaled.T
            e = np.exp(logits - logits.max())
            e /= e.sum()
            between = time.perf_counter()
            adapter.adapt(row)
            end = time.perf_counter()
            ours[i], base[i] = min(ours[i], end - between), min(base[i], between - start)
    return ours, base


def tda(small: bool) -> list[Row]:
    n, classes, width = 1_000 if small else 6_000, 1000, 512
    stream, text = features(n, classes, width)
    reference, adapter = ReferenceTDA(text, dtype=np.float32), soba.TDA(text)
    out: dict[str, np.ndarray] = {}
    slow = seconds(lambda: out.update(slow=np.array([reference.adapt(row) for row in stream])))
    fast = seconds(lambda: out.update(fast=adapter.adapt(stream)))
    differ = int((out["slow"].argmax(axis=1) != out["fast"].argmax(axis=1)).sum())
    if differ > n // 1000:
        raise SystemExit(f"TDA disagrees with the reference on {differ} of {n} rows")
    what = f"TDA.adapt, {n:,} rows, C={classes}, {differ} differ: times faster than dictionaries"
    return [Row(what, slow / fast, 20.0, "x", at_least=True)]


def memory(small: bool) -> list[Row]:
    early, late = (10_000, 30_000) if small else (100_000, 1_000_000)
    classes, width = (100, 64) if small else (1000, 512)
    stream, text = features(10_000, classes, width)
    adapter = soba.SOBA(text)
    sizes = {}
    for count in range(0, late, len(stream)):
        rng = np.random.default_rng(count)
        adapter.adapt(stream + 0.05 * rng.normal(size=stream.shape).astype(np.float32))
        if count + len(stream) in (early, late):
            sizes[count + len(stream)] = resident()
    queue = adapter.queue.nbytes / (classes * 16 * width * 4)
    return [
        Row(
            f"resident memory after {late:,} samples / after {early:,}",
            sizes[late] / sizes[early],
            1.1,
        ),
        Row("queue / C K d 4 bytes", queue, 1.3),
    ]


def resident() -> float:
    """Bytes this process holds now (not its peak)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def import_time(small: bool) -> list[Row]:
    code = "import time; t = time.perf_counter(); import soba; print(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        for _ in range(1 if small else 5)
    ]
    best = min(float(run.stdout) for run in runs)
    return [Row("import soba (with numpy)", best, 0.3, "s")]


def demo(small: bool) -> list[Row]:
    """What adapting costs in the demo, against encoding its icons with the tiny CLIP.

    One thread for both, as in all rows: more cores would speed up one of them and not the other.
    """
    # Here, so that the encoder's libraries are no part of the memory that is measured above.
    from soba.encode.onnx import OnnxEncoder
    from soba.studies.demo import adapt_share, run_demo

    domains = run_demo(
        OnnxEncoder.tiny(threads=1),
        per_class=1 if small else 32,
        orders=1 if small else 5,
        methods=("zero-shot", "soba+"),
    )
    return [Row("demo: adapting, of the time of encoding", 100 * adapt_share(domains), 2.0, "%")]


def hold(parts: dict[str, Callable[[bool], list[Row]]], only: str, small: bool) -> None:
    """Run some parts by name, print their rows, and end with an error where one is past its bar."""
    failed = []
    for name in only.split(","):
        for row in parts[name](small):
            verdict = "" if small else "ok" if row.passes() else "PAST THE BAR"
            print(row, verdict, flush=True)
            if verdict == "PAST THE BAR":
                failed.append(row.what)
    if failed:
        sys.exit(f"past the bar: {', '.join(failed)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="run everything once, hold no bar")
    parser.add_argument(
        "--only",
        default="bulk,one_by_one,tda,memory,import_time,demo",
        help="parts, comma-separated",
    )
    arguments = parser.parse_args()
    hold(globals(), arguments.only, arguments.small)


if __name__ == "__main__":
    main()
