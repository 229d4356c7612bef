"""How fast `soba classify` is against its own encoder: images per second, as a ratio.

    python perf/classify.py [--images 1000] [--model tiny]
    python perf/classify.py --small    64 images, once, and no bar: seconds

The encoder's own rate is that of a plain loop: open, preprocess, encode, batch after batch, with
nothing learned and nothing written. `classify` does all that, adapts, and writes a .csv; it must
reach 95 %. The rate of the image tower alone, on pixels that are ready, is printed beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from soba.cli import app
from soba.datasets import load_images
from soba.datasets.icons import icons
from soba.encode.encoder import load_encoder

BAR = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="few images, and no bar holds")
    options = parser.parse_args()
    if options.small:
        options.images, options.repeats = 64, 1
    encoder = load_encoder(options.model)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = draw(root / "images", options.images)
        images = load_images(root / "images")
        (root / "classes.txt").write_text("\n".join(names))
        pixels = np.stack([encoder.preprocess(images.image(i)) for i in range(64)])

        def tower() -> float:
            start = time.perf_counter()
            for _ in range(0, options.images, 64):
                encoder.encode_pixels(pixels)
            return time.perf_counter() - start

        def loop() -> float:
            start = time.perf_counter()
            for first in range(0, len(images), 64):
                span = range(first, min(first + 64, len(images)))
                batch = [encoder.preprocess(images.image(index)) for index in span]
                encoder.encode_pixels(np.stack(batch))
            return time.perf_counter() - start

        def classify() -> float:
            """As the command itself says, loading and prompts aside: they do not grow."""
            arguments = ["classify", str(root / "images"), "--model", options.model]
            arguments += ["--classes-file", str(root / "classes.txt"), "-o", str(root / "out.csv")]
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                app(arguments, standalone_mode=False)
            match = re.search(r"([0-9.]+) images/s", printed.getvalue())
            assert match is not None, printed.getvalue()
            return options.images / float(match[1])

        # In turn, and the best of each: a machine that pauses hits all alike.
        tasks = {"image tower": tower, "loop": loop, "classify": classify}
        best = dict.fromkeys(tasks, float("inf"))
        for _ in range(options.repeats):
            for name, task in tasks.items():
                best[name] = min(best[name], task())
    for name, seconds in best.items():
        print(f"{name:12} {options.images / seconds:8.0f} images/s")
    ratio = best["loop"] / best["classify"]
    print(f"classify / the encoder's own loop: {ratio:.2f} (bar {BAR})")
    return 0 if options.small or ratio >= BAR else 1


def draw(folder: Path, count: int) -> tuple[str, ...]:
    """Icons as files; returns the class names."""
    folder.mkdir()
    stream = icons("v2", -(-count // len(icons("v2", 1))))
    for index in range(count):
        stream.image(index).save(folder / f"{index:05}.png")
    return stream.class_names


if __name__ == "__main__":
    sys.exit(main())
