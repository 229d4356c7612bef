"""Images to extract features of, runs that stop on the way, and what those leave."""

import os

import numpy as np
from PIL import Image


class Noise:
    """Images of noise; some cannot be read."""

    def __init__(self, count, broken=(), recipe="noise"):
        self.keys = tuple(f"{i}.png" for i in range(count))
        self.broken = set(broken)
        self.recipe = recipe
        self.opened = []

    def image(self, index):
        self.opened.append(index)
        if index in self.broken:
            raise OSError(f"number {index} is torn")
        pixels = np.random.default_rng(index).integers(1, 255, (12, 10, 3), np.uint8)
        return Image.fromarray(pixels)


class Stopped(Exception):
    pass


def stop_after(count):
    def step(done, total):
        if done >= count:
            raise Stopped

    return step


def leftovers(folder):
    return sorted(name for name in os.listdir(folder) if "partial" in name or name.startswith("."))
