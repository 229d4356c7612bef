"""Train the tiny CLIP on icons of the source families; write its weights to soba/tiny.

    make tiny                                # train, export, find the hard icons
    python training/train.py --steps 1600    # this step alone; run again after a kill: it goes on

Each batch holds names, two drawings of each, and a caption of each made from a random template.
First the image tower alone learns to tell names apart, by a learned embedding of each name; then
the text tower joins, with CLIP's contrastive loss between images and captions. Nothing of Phosphor
or Remix is seen. Seeded; batches depend on (seed, step) only.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import model as tiny  # first: it makes torchvision importable
import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from data import IMAGES_PER_NAME, NAMES_PER_BATCH, SIZE, Vocabulary, batches, normalised
from rich.progress import track

from soba._files import replacing
from soba.encode.preprocess import Preprocess
from soba.encode.tokens import ByteTokenizer

WARM_UP = 50
ALONE = 0.55  # of the steps the image tower learns without the text tower
TEXT_RATE = 0.4  # of the image tower's learning rate: a transformer wants less
SAVE_EVERY = 50


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--out", type=Path, default=tiny.WEIGHTS)
    parser.add_argument("--work", type=Path, default=tiny.ROOT / "out" / "training")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    checkpoint = options.work / "checkpoint.pt"

    torch.manual_seed(options.seed)
    torch.set_num_threads(os.cpu_count() or 1)
    model = tiny.new_model().to(memory_format=torch.channels_last)
    tokenizer = ByteTokenizer(tiny.config()["text_cfg"]["context_length"])
    vocabulary = Vocabulary.of_source()
    names = len(vocabulary.core) + len(vocabulary.extra)
    table = torch.nn.Parameter(0.1 * torch.randn(names, model.text_projection.shape[1]))
    optimiser = torch.optim.AdamW(_groups(model, table), lr=options.rate, betas=(0.9, 0.98))
    run = {"steps": options.steps, "seed": options.seed, "rate": options.rate}
    done, seconds, losses = 0, 0.0, []
    spent = 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        if saved["run"] != run:
            raise SystemExit(f"{checkpoint} is of another run, {saved['run']}: move it away")
        model.load_state_dict(saved["model"])
        table.data.copy_(saved["table"])
        optimiser.load_state_dict(saved["optimiser"])
        done, seconds, losses = saved["done"], saved["seconds"], saved["losses"]
        spent = seconds

    preprocess = Preprocess(size=SIZE)
    print(
        f"{tiny.parameters(model) / 1e6:.2f} M parameters, {len(vocabulary.core)} classes, "
        f"{len(vocabulary.extra)} other names, steps {done} to {options.steps}"
    )
    model.train()
    stream = batches(vocabulary, options.seed, done, options.steps)
    start = time.perf_counter()
    for step, (pixels, captions, numbers) in enumerate(
        track(stream, "training", total=options.steps - done), done
    ):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * group["share"] * _schedule(step, options.steps)
        images = torch.from_numpy(normalised(pixels, preprocess))
        images = images.contiguous(memory_format=torch.channels_last)
        tokens, owner = torch.from_numpy(tokenizer(captions)), torch.from_numpy(numbers)
        reads = step >= round(ALONE * options.steps)
        parts = losses_of(model, images, tokens if reads else None, table, owner)
        optimiser.zero_grad()
        torch.stack(parts).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0.0, float(np.log(100.0)))
        losses.append([round(float(part.detach()), 4) for part in parts])
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == options.steps:
            spent = seconds + time.perf_counter() - start
            recent = [row for row in losses[-SAVE_EVERY:] if len(row) == len(losses[-1])]
            means = np.mean(recent, axis=0).round(3)
            print(f"step {step + 1}: losses {means}, {spent:.0f} s", flush=True)
            state = {"run": run, "model": model.state_dict(), "table": table.data}
            state |= {"optimiser": optimiser.state_dict()}
            with replacing(checkpoint) as temporary:
                torch.save(
                    state | {"done": step + 1, "seconds": spent, "losses": losses}, temporary
                )
    save(model, options.out)
    curve = [losses[i] for i in range(SAVE_EVERY - 1, len(losses), SAVE_EVERY)]
    images_seen = options.steps * NAMES_PER_BATCH * IMAGES_PER_NAME
    report = run | {"seconds": round(spent), "images": images_seen, "loss": curve}
    (options.work / "training.json").write_text(json.dumps(report, indent=1) + "\n")


def losses_of(
    model: torch.nn.Module,
    images: torch.Tensor,
    tokens: torch.Tensor | None,
    table: torch.Tensor,
    numbers: torch.Tensor,
) -> list[torch.Tensor]:
    """Images to names, captions to names, and CLIP's symmetric loss of images and captions.

    Two towers that know nothing teach each other nothing for a long time when one of them has to
    read letters. The table of names is a third party; it is thrown away afterwards.
    """
    image = model.encode_image(images, normalize=True)
    names, scale = F.normalize(table, dim=1), model.logit_scale.exp()
    owner = torch.arange(len(numbers)).repeat_interleave(len(image) // len(numbers))
    losses = [F.cross_entropy(scale * image @ names.T, numbers[owner])]
    if tokens is not None:
        text = model.encode_text(tokens, normalize=True)
        logits = scale * image @ text.T  # (names * images, names)
        to_text = F.cross_entropy(logits, owner)
        to_image = -F.log_softmax(logits, dim=0)[torch.arange(len(image)), owner].mean()
        losses.append(F.cross_entropy(scale * text @ names.T, numbers))
        losses.append((to_text + to_image) / 2)
    return losses


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
    with replacing(tiny.CONFIG) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def _groups(model: torch.nn.Module, table: torch.Tensor) -> list[dict[str, Any]]:
    """Weight decay on matrices only, as CLIP does; the text tower learns more slowly."""
    groups = [{"params": [table], "weight_decay": 0.0, "share": 1.0}]
    for visual in (True, False):
        for matrix in (True, False):
            chosen = [
                parameter
                for name, parameter in model.named_parameters()
                if name.startswith("visual.") == visual and (parameter.ndim > 1) == matrix
            ]
            decay, share = 0.05 * matrix, 1.0 if visual else TEXT_RATE
            groups.append({"params": chosen, "weight_decay": decay, "share": share})
    return groups


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up, then a half cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1.0 + float(np.cos(np.pi * (step - WARM_UP) / max(1, steps - WARM_UP))))


if __name__ == "__main__":
    main()
