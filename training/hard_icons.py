"""Find the icons of the hard domain: what a separate small network, not the tiny CLIP, gets wrong.

As ImageNet-A was made with a ResNet-50: train a classifier on the source families, show it drawings
of a family it has not seen (Phosphor's regular weight, which no other domain uses), and keep those
it gets wrong more often than right. Writes soba/datasets/data/icons_hard.txt.

The list is a data set: it was made once and is not made anew with each training, since rounding
decides the last of it (on another machine 119 of the 120 came out, and no other).
"""

from __future__ import annotations

import argparse
import os
import time

import model as tiny  # first: it finds the project
import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track

from soba._files import replacing
from soba.datasets import icons
from soba.encode.preprocess import Preprocess

SIZE = 64
LIST = tiny.ROOT / "soba" / "datasets" / "data" / "icons_hard.txt"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shown", type=int, default=12, help="pictures of each drawing")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(os.cpu_count() or 1)
    names = icons.class_names()
    network = train(names, options.steps, options.seed)
    known = rates(network, names, list(icons.drawings_of("source")), 4, options.seed)
    print(f"on the source families: {100 * known.mean():.1f} % right")
    candidates = [drawing for name in names if icons.exists(drawing := f"phosphor-regular/{name}")]
    unseen = rates(network, names, candidates, options.shown, options.seed)
    hard = [drawing for drawing, rate in zip(candidates, unseen, strict=True) if rate < 0.5]
    print(f"of {len(candidates)} unseen drawings it gets {len(hard)} wrong more often than right")
    note = (
        f"# Made by training/hard_icons.py: of Phosphor's {len(candidates)} regular drawings, "
        "those that a small\n# network trained on Font Awesome and Material Design Icons gets "
        "wrong more often than right.\n"
    )
    with replacing(LIST) as temporary:
        temporary.write_text(note + "\n".join(hard) + "\n")


def network_of(classes: int) -> torch.nn.Sequential:
    """Four convolutions and a linear layer."""
    layers: list[torch.nn.Module] = []
    for inside, outside in ((3, 24), (24, 48), (48, 96), (96, 192)):
        layers += [
            torch.nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(outside),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
        ]
    layers += [torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(768, classes)]
    return torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)


def train(names: tuple[str, ...], steps: int, seed: int) -> torch.nn.Module:
    network = network_of(len(names))
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 6e-3, total_steps=steps)
    drawings = icons.drawings_of("source")
    labels = np.array([names.index(drawing.partition("/")[2]) for drawing in drawings])
    start = time.perf_counter()
    for step in track(range(steps), "a small network"):
        rng = np.random.default_rng([seed, step])
        rows = rng.integers(len(drawings), size=128)
        pixels = pixels_of([drawings[i] for i in rows], rng)
        loss = F.cross_entropy(network(pixels), torch.from_numpy(labels[rows]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    seconds = time.perf_counter() - start
    print(f"{steps} steps in {seconds:.0f} s, last loss {float(loss.detach()):.2f}")
    return network.eval()


@torch.inference_mode()
def rates(
    network: torch.nn.Module, names: tuple[str, ...], drawings: list[str], pictures: int, seed: int
) -> np.ndarray:
    """The share of right answers for each drawing, on new pictures of it."""
    shares = []
    for number, drawing in enumerate(track(drawings, "asking it")):
        rng = np.random.default_rng([seed, 10**6, number])
        answers = network(pixels_of([drawing] * pictures, rng)).argmax(dim=1).numpy()
        shares.append(float((answers == names.index(drawing.partition("/")[2])).mean()))
    return np.array(shares)


def pixels_of(drawings: list[str], rng: np.random.Generator) -> torch.Tensor:
    preprocess = Preprocess(size=SIZE)
    pictures = [icons.render(icons.mask(drawing), rng, "plain", SIZE) for drawing in drawings]
    pixels = np.stack([preprocess.normalise(picture) for picture in pictures])
    return torch.from_numpy(pixels).contiguous(memory_format=torch.channels_last)


if __name__ == "__main__":
    main()
