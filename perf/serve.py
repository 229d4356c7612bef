"""What learning costs a server beside looking, and what it keeps in memory.

    python perf/serve.py            minutes
    python perf/serve.py --small    every row once, on little data: seconds

The tiny CLIP on SQLite, synced, in a process of its own; 16 clients in another, each with one
request at a time. They look and learn in turns, so that a busy machine slows both. What a commit
takes is what the server says of it in each answer (Server-Timing).
"""

from __future__ import annotations

import os

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy starts its threads

import argparse
import http.client
import io
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
from speed import Row, hold

import soba
from soba.datasets.icons import icons

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
from server_farm import Server, ServerFarm

CLIENTS = 16


@contextmanager
def served(*options: str) -> Iterator[Server]:
    farm = ServerFarm()
    try:
        with tempfile.TemporaryDirectory() as folder:
            store = f"sqlite:///{folder}/streams.db"
            with farm.start(store, folder, "--accept-features", *options) as server:
                yield server
    finally:
        farm.close()


def pictures(some: int) -> tuple[list[bytes], list[str]]:
    """Icons as files of PNG, and the names of their classes."""
    drawn, files = icons("source", per_class=8), []
    for index in range(min(some, len(drawn.keys))):
        file = io.BytesIO()
        drawn.image(index).save(file, "PNG")
        files.append(file.getvalue())
    return files, list(drawn.class_names)


class Asker(threading.Thread):
    """One client: a request after the other over one connection, each timed."""

    def __init__(self, server: Server, requests: list[tuple[str, bytes]]) -> None:
        super().__init__()
        self._server, self._requests = server, requests
        self.seconds: list[float] = []
        self.commits: list[float] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port)
        for path, body in self._requests:
            began = time.perf_counter()
            connection.request("POST", path, body, {"Content-Type": "image/png"})
            answer = connection.getresponse()
            content = answer.read()
            self.seconds.append(time.perf_counter() - began)
            assert answer.status == 200, content
            self.commits.append(float(answer.headers["Server-Timing"].rpartition("=")[2]) / 1e3)
        connection.close()


def latency(small: bool) -> list[Row]:
    """Single images by 16 clients, looked at and learned from in turns."""
    rounds, each = (2, 4) if small else (12, 40)
    files, names = pictures(160)
    numbers, taken = count(), {"look": [], "learn": [], "commit": []}
    with served() as server, soba.Client(server.url) as client:
        client.create("icons", names[:20])
        for turn in range(2 * rounds + 2):
            what = ("look", "learn")[turn % 2]
            path = f"/v1/streams/icons/classify?learn={str(what == 'learn').lower()}&id="
            new = [next(numbers) for _ in range(each * CLIENTS)]
            requests = [(f"{path}{place}", files[place % len(files)]) for place in new]
            askers = [Asker(server, requests[k::CLIENTS]) for k in range(CLIENTS)]
            for asker in askers:
                asker.start()
            for asker in askers:
                asker.join()
            if turn > 1:  # the first of each is warm-up
                taken[what] += [value for asker in askers for value in asker.seconds]
                if what == "learn":
                    taken["commit"] += [value for asker in askers for value in asker.commits]
    return bars({what: quantiles(values) for what, values in taken.items()})


def quantiles(values: list[float]) -> dict[str, float]:
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in (50, 99)}


def bars(said: dict[str, dict[str, float]]) -> list[Row]:
    for what, values in said.items():
        print(
            f"{what:<8}"
            + "".join(f"{name} {1e3 * value:8.1f} ms   " for name, value in values.items())
        )
    rows = []
    for name, of_look, of_commit in (("p50", 1.15, 1.5), ("p99", 1.5, 2.0)):
        due = of_look * said["look"][name] + of_commit * said["commit"][name]
        what = f"{name}(learn) / ({of_look} {name}(look) + {of_commit} {name}(commit))"
        rows.append(Row(what, said["learn"][name] / due, 1.0))
    return rows


def many_samples(small: bool) -> list[Row]:
    """Memory of a stream that goes on and on."""
    early, late, step = (500, 2_000, 100) if small else (20_000, 100_000, 100)
    _, names = pictures(1)
    text = soba.Classifier("tiny", names[:20]).adapter.text_features
    rng, memory = np.random.default_rng(0), {}
    with served() as server, soba.Client(server.url) as client:
        stream, begun = client.create("icons", names[:20]), time.perf_counter()
        for start in range(0, late, step):
            noise = rng.normal(size=(step, text.shape[1])) / np.sqrt(text.shape[1])
            rows = (text[rng.integers(20, size=step)] + noise).astype(np.float32)
            for _ in stream.classify(features=rows, batch=step):
                pass
            if start + step in (early, late):
                memory[start + step] = server.memory()
        assert stream.state()["n_seen"] == late
        speed = late / (time.perf_counter() - begun)
    print(
        f"{speed:,.0f} samples/s, "
        + ", ".join(f"{m / 1e6:.0f} MB at {n:,}" for n, m in memory.items())
    )
    what = f"memory of the server at {late:,} samples / at {early:,}"
    return [Row(what, memory[late] / memory[early], 1.1)]


def many_streams(small: bool) -> list[Row]:
    """Memory of 200 streams of which 10 are in use, beside that of 10."""
    most, active, each = (20, 2, 64) if small else (200, 10, 640)
    _, names = pictures(1)
    text = soba.Classifier("tiny", names[:20]).adapter.text_features
    memory = {}
    for streams in (active, most):
        with served("--max-streams", "1000") as server, soba.Client(server.url) as client:
            for number in range(streams):
                feed(client, f"stream-{number}", names[:20], text, each, seed=number)
            for turn in range(3):
                for number in range(active):
                    feed(client, f"stream-{number}", names[:20], text, each, seed=1000 + turn)
            memory[streams] = server.memory()
    print(
        ", ".join(
            f"{value / 1e6:.0f} MB with {streams} streams" for streams, value in memory.items()
        )
    )
    what = f"memory of {most} streams, {active} in use / of {active}"
    return [Row(what, memory[most] / memory[active], 1.5)]


def feed(
    client: soba.Client, name: str, classes: list[str], text: np.ndarray, samples: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(samples, text.shape[1])) / np.sqrt(text.shape[1])
    rows = (text[rng.integers(len(text), size=samples)] + noise).astype(np.float32)
    for _ in client.create(name, classes).classify(features=rows, batch=64):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="run everything once, hold no bar")
    parser.add_argument(
        "--only", default="latency,many_samples,many_streams", help="parts, comma-separated"
    )
    arguments = parser.parse_args()
    hold(globals(), arguments.only, arguments.small)


if __name__ == "__main__":
    main()
