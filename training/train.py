"""Train the tiny CLIP on icons of the source families; write its weights to soba/tiny.

    make tiny                   # train, export, report
    python training/train.py    # this step alone; run again after a kill: it goes on

Each batch holds names, two drawings of each, and a caption of each made from a random template.
The losses are CLIP's, between images and captions, and those of both to a learned embedding of
each name. Nothing of Phosphor or Remix is seen. Seeded; batches depend on (seed, step) only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model as tiny  # first: it makes torchvision importable
import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from data import (
    IMAGES_PER_NAME,
    NAMES_PER_BATCH,
    SIZE,
    SMALL,
    Batch,
    Vocabulary,
    batches,
    normalised,
)
from rich.progress import track
from torch.func import functional_call

from soba._files import replacing
from soba.datasets import icons
from soba.encode.preprocess import Preprocess
from soba.encode.prompts import fill
from soba.encode.tokens import ByteTokenizer

WARM_UP = 50  # steps at the start of each phase
TEXT_RATE = 0.4  # of the image tower's learning rate: a transformer wants less
SAVE_EVERY = 50
CALIBRATION_SEED = 99999


@dataclass(frozen=True)
class Phase:
    """Some steps with a learning rate that warms up and falls in a half cosine."""

    steps: int
    rate: float
    size: int  # of the pictures, in pixels; 0: no pictures
    captions_from: int = 0  # the step of this phase at which the text tower joins


# Two towers that know nothing teach each other nothing for a long time when one of them has to
# read letters: the image tower learns alone at first, by a learned embedding of each name. The text
# tower then joins; it catches up on captions alone, which cost little; and both learn together.
# Small pictures cost less than half of large ones, so most of what is seen is small; the last
# phase has the size that the model is for.
PHASES = (
    Phase(2200, 3e-3, SMALL, captions_from=1200),
    Phase(500, 3e-3, 0),
    Phase(1200, 2e-3, SIZE),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of each phase's steps, to try")
    parser.add_argument("--out", type=Path, default=tiny.WEIGHTS)
    parser.add_argument("--work", type=Path, default=tiny.ROOT / "out" / "training")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    plan = list(steps_of(options.share))

    torch.manual_seed(options.seed)
    torch.set_num_threads(os.cpu_count() or 1)
    training = Training(options.work / "checkpoint.pt", {"seed": options.seed, "steps": len(plan)})
    print(
        f"{tiny.parameters(training.model) / 1e6:.2f} M parameters, "
        f"{len(training.vocabulary.core)} classes, {len(training.vocabulary.extra)} other names, "
        f"steps {training.done} to {len(plan)}"
    )
    steps = plan[training.done :]
    sizes = [(number, step.size) for number, step in enumerate(steps, training.done)]
    stream = batches(training.vocabulary, options.seed, sizes)
    start = time.perf_counter() - training.seconds
    for step, batch in zip(steps, track(stream, "training", total=len(steps)), strict=True):
        training.learn(step, batch)
        training.seconds = time.perf_counter() - start
        if training.done % SAVE_EVERY == 0 or training.done == len(plan):
            training.save()
    learned = float(training.model.logit_scale.detach().exp())
    calibrate(training.model.eval(), training.tokenizer, training.preprocess)
    save(training.model, options.out)
    report = training.run | {
        "seconds": round(training.seconds),
        "images": sum(step.size > 0 for step in plan) * NAMES_PER_BATCH * IMAGES_PER_NAME,
        "learned_scale": learned,
        "every": SAVE_EVERY,
        "loss": training.losses[SAVE_EVERY - 1 :: SAVE_EVERY],
    }
    (options.work / "training.json").write_text(json.dumps(report, indent=1) + "\n")


@dataclass(frozen=True)
class Step:
    rate: float
    size: int
    captions: bool


def steps_of(share: float) -> Iterator[Step]:
    """Every step of the plan."""
    for phase in PHASES:
        steps = max(1, round(share * phase.steps))
        for step in range(steps):
            yield Step(
                phase.rate * _schedule(step, steps),
                phase.size,
                step >= round(share * phase.captions_from),
            )


class Training:
    """Model, optimiser and what is done so far; goes on from its checkpoint if there is one."""

    def __init__(self, checkpoint: Path, run: dict[str, int]) -> None:
        self.checkpoint, self.run = checkpoint, run
        self.model = tiny.new_model().to(memory_format=torch.channels_last).train()
        self.tokenizer = ByteTokenizer(tiny.config()["text_cfg"]["context_length"])
        self.preprocess = Preprocess(size=SIZE)
        self.vocabulary = Vocabulary.of_source()
        names = len(self.vocabulary.core) + len(self.vocabulary.extra)
        width = self.model.text_projection.shape[1]
        self.table = torch.nn.Parameter(0.1 * torch.randn(names, width))
        self.optimiser = torch.optim.AdamW(_groups(self.model, self.table), betas=(0.9, 0.98))
        self.done, self.seconds = 0, 0.0
        self.losses: list[dict[str, float]] = []
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            if saved["run"] != run:
                raise SystemExit(f"{checkpoint} is of another run, {saved['run']}: move it away")
            self.model.load_state_dict(saved["model"])
            self.table.data.copy_(saved["table"])
            self.optimiser.load_state_dict(saved["optimiser"])
            self.done, self.seconds = saved["done"], saved["seconds"]
            self.losses = saved["losses"]

    def learn(self, step: Step, batch: Batch) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = step.rate * group["share"]
        losses = self._losses(step, batch)
        self.optimiser.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        with torch.no_grad():
            self.model.logit_scale.clamp_(0.0, float(np.log(100.0)))
        self.losses.append({name: round(float(x.detach()), 4) for name, x in losses.items()})
        self.done += 1

    def save(self) -> None:
        last = self.losses[-1]
        recent = [row for row in self.losses[-SAVE_EVERY:] if row.keys() == last.keys()]
        means = {name: round(float(np.mean([row[name] for row in recent])), 3) for name in last}
        print(f"step {self.done}: {means}, {self.seconds:.0f} s", flush=True)
        state = {
            "run": self.run,
            "model": self.model.state_dict(),
            "table": self.table.data,
            "optimiser": self.optimiser.state_dict(),
            "done": self.done,
            "seconds": self.seconds,
            "losses": self.losses,
        }
        with replacing(self.checkpoint) as temporary:
            torch.save(state, temporary)

    def _losses(self, step: Step, batch: Batch) -> dict[str, torch.Tensor]:
        """Images to names, captions to names, and CLIP's symmetric loss of images and captions.

        Names are a learned table, a third party that is thrown away in the end.
        """
        model, losses = self.model, {}
        numbers = torch.from_numpy(batch.numbers)
        names, scale = F.normalize(self.table, dim=1), model.logit_scale.exp()
        if batch.pixels is not None:
            pixels = torch.from_numpy(normalised(batch.pixels, self.preprocess))
            image = see(model, pixels.contiguous(memory_format=torch.channels_last))
            owner = torch.arange(len(numbers)).repeat_interleave(IMAGES_PER_NAME)
            losses["seen"] = F.cross_entropy(scale * image @ names.T, numbers[owner])
        if step.captions:
            text = read(model, torch.from_numpy(self.tokenizer(batch.captions)))
            losses["read"] = F.cross_entropy(scale * text @ names.T, numbers)
        if step.captions and batch.pixels is not None:
            logits = scale * image @ text.T  # (names * images, names)
            to_text = F.cross_entropy(logits, owner)
            to_image = -F.log_softmax(logits, dim=0)[torch.arange(len(image)), owner].mean()
            losses["contrast"] = (to_text + to_image) / 2
        return losses


def see(model: torch.nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    """Unit features of images of any size: where it is not the model's own, the embeddings of
    places in the last layer are interpolated."""
    name = "visual.attnpool.positional_embedding"
    places = model.get_parameter(name)  # of the mean, then of a square
    side = round(math.sqrt(len(places) - 1))
    wanted = pixels.shape[-1] * side // model.visual.image_size
    square = places[1:].T.reshape(1, -1, side, side)
    square = F.interpolate(square, (wanted, wanted), mode="bilinear", align_corners=True)
    resized = torch.cat([places[:1], square.flatten(2)[0].T])
    own = functional_call(model.visual, {name.removeprefix("visual."): resized}, (pixels,))
    return F.normalize(own, dim=-1)


def read(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Unit features of sentences, as `encode_text` has them, without what lies behind the longest:
    no token sees those after it."""
    length = int(tokens.argmax(dim=1).max()) + 1
    parts = {
        "positional_embedding": model.positional_embedding[:length],
        "attn_mask": model.attn_mask[:length, :length],
    }
    return functional_call(model, parts, (None, tokens[:, :length]))[1]


@torch.inference_mode()
def calibrate(model: torch.nn.Module, tokenizer: ByteTokenizer, preprocess: Preprocess) -> None:
    """Set the logit scale at which the model's doubts on the source families are right.

    Training shows other names, pens and colours, harder than the icons as they are, so the scale it
    learns doubts too much. The likeliest scale is found on new pictures of the source families.
    """
    images = icons.icons("source", 8, seed=CALIBRATION_SEED)
    drawn = [preprocess(images.image(index)) for index in range(len(images))]
    rows = torch.from_numpy(np.stack(drawn)).split(64)
    image = torch.cat([model.encode_image(part, normalize=True) for part in rows])
    sentences = [fill(images.templates[0], name) for name in images.class_names]
    text = model.encode_text(torch.from_numpy(tokenizer(sentences)), normalize=True)
    cosines, labels = image @ text.T, torch.from_numpy(images.labels)
    scales = torch.arange(10.0, 100.5, 0.5)
    losses = torch.stack([F.cross_entropy(scale * cosines, labels) for scale in scales])
    model.logit_scale.fill_(float(scales[losses.argmin()].log()))


def save(model: torch.nn.Module, path: Path) -> None:
    """Rounded to float16, which the ONNX exports start from too, so that all parts agree."""
    weights = {
        name: value.half().contiguous() if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    with replacing(path) as temporary:
        safetensors.torch.save_file(weights, temporary)
    content = json.loads(tiny.CONFIG.read_text())
    content["soba"]["logit_scale"] = float(weights["logit_scale"].float().exp())
    with replacing(path.with_name(tiny.CONFIG.name)) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def _groups(model: torch.nn.Module, table: torch.Tensor) -> list[dict[str, Any]]:
    """Weight decay on matrices only, as CLIP does; the text tower learns more slowly."""
    groups = [{"params": [table], "weight_decay": 0.0, "share": 1.0}]
    for visual in (True, False):
        for matrix in (True, False):
            parameters = [
                parameter
                for name, parameter in model.named_parameters()
                if name.startswith("visual.") == visual and (parameter.ndim > 1) == matrix
            ]
            decay, share = 0.05 * matrix, 1.0 if visual else TEXT_RATE
            groups.append({"params": parameters, "weight_decay": decay, "share": share})
    return groups


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up, then a half cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1.0 + float(np.cos(np.pi * (step - WARM_UP) / max(1, steps - WARM_UP))))


if __name__ == "__main__":
    main()
