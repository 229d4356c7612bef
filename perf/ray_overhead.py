"""What Ray costs: CPU seconds of all its processes against the same shards run without it.

    python perf/ray_overhead.py [--images 120000] [--shard 1000]    5 minutes and more of work
    python perf/ray_overhead.py --small    240 icons: seconds, and Ray's start is most of it

Both encode the same icons with the tiny CLIP, one thread a worker: `soba embed --shards` in one
process, and `soba embed --ray` on a cluster of its own, without dashboard and usage statistics.
CPU seconds are those of every process that came of the command, sampled as they run. Linux only:
processes whose parents end are taken in, so that none is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from soba.datasets.icons import icons

EVERY = 0.1  # seconds between two samples; what a process does after its last one is not seen
TICKS = os.sysconf("SC_CLK_TCK")
_SUBREAPER = 36  # of prctl


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--images", type=int, default=120_000)
    parser.add_argument("--shard", type=int, default=1000, help="images of a shard")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.small:
        options.images, options.shard = 240, 30
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="soba-") as folder:
        place = Path(folder)
        draw(place, options.images)
        costs = {}
        for name, how in (("without Ray", ["--shards"]), ("with Ray", ["--ray"])):
            arguments = ["embed", str(place / "icons"), "-o", str(place / name), *how]
            arguments += ["--classes-file", str(place / "names.txt"), "--threads", "1"]
            costs[name] = cpu_seconds([*arguments, "--shard-size", str(options.shard)], place)
            used, passed = costs[name]
            print(f"{name:12} {used:8.1f} CPU s, {passed:8.1f} s by the clock", flush=True)
        same = files_of(place / "without Ray") == files_of(place / "with Ray")
    more = costs["with Ray"][0] / costs["without Ray"][0] - 1
    print(f"{options.images} images in shards of {options.shard}: Ray adds {more:+.1%} of CPU time")
    print("the same files" if same else "OTHER FILES")
    return 0 if same else 1


def cpu_seconds(arguments: list[str], place: Path) -> tuple[float, float]:
    """CPU and clock seconds of a command, with all that it starts."""
    env = os.environ | {
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": str(place),
        "HOME": str(place),
    }
    start, used = time.perf_counter(), dict[tuple[int, int], float]()
    command = subprocess.Popen(
        [sys.executable, "-m", "soba", *arguments], env=env, stdout=subprocess.DEVNULL
    )
    while command.poll() is None:
        sample(used)
        time.sleep(EVERY)
    seconds = time.perf_counter() - start
    if command.returncode:
        raise SystemExit(command.returncode)
    while len(sample(used)) > 0:  # what the cluster leaves behind ends by itself
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(EVERY)
    return sum(used.values()), seconds


def sample(used: dict[tuple[int, int], float]) -> set[int]:
    """Note what every process that came of this one has used so far; which ones there are."""
    parents: dict[int, int] = {}
    times: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            # The name comes in brackets, and may hold anything; then state, parent, ...
            words = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(words[1])
            times[number] = int(words[19]), (int(words[11]) + int(words[12])) / TICKS
    ours = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in ours} - ours:
        ours |= more
    ours.remove(os.getpid())
    for number in ours:
        begun, seconds = times[number]
        used[number, begun] = seconds
    return ours


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("features-*"))}


def draw(place: Path, count: int) -> None:
    """Icons as files, and their class names."""
    (place / "icons").mkdir()
    stream = icons("v2", -(-count // len(icons("v2", 1))))
    for index in range(count):
        stream.image(index).save(place / "icons" / f"{index:06}.png")
    (place / "names.txt").write_text("\n".join(stream.class_names))


if __name__ == "__main__":
    sys.exit(main())
