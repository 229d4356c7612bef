"""Train the tiny CLIP on icons of the source families, and write soba/tiny/open_clip_model.safetensors.

    make tiny                                # train, export, find the hard icons
    python training/train.py --steps 1600    # this step alone; run again after a kill: it goes on

Contrastive: each batch holds names, two drawings of each, and a caption of each made from a random
template. Nothing of Phosphor or Remix is seen. Seeded; batches depend on (seed, step) only.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

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

WARM_UP = 100
SAVE_EVERY = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--out", type=Path, default=tiny.WEIGHTS)
    parser.add_argument("--work", type=Path, default=tiny.ROOT / "out" / "training")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    checkpoint = options.work / "checkpoint.pt"

    torch.manual_seed(options.seed)
    torch.set_num_threads(os.cpu_count() or 1)
    model = tiny.new_model().to(memory_format=torch.channels_last)
    tokenizer = ByteTokenizer(tiny.config()["text_cfg"]["context_length"])
    optimiser = torch.optim.AdamW(_groups(model), lr=options.rate, betas=(0.9, 0.98))
    run = {"steps": options.steps, "seed": options.seed, "rate": options.rate}
    done, seconds, losses = 0, 0.0, []
    spent = 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        if saved["run"] != run:
            raise SystemExit(f"{checkpoint} is of another run, {saved['run']}: move it away")
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        done, seconds, losses = saved["done"], saved["seconds"], saved["losses"]
        spent = seconds

    preprocess = Preprocess(size=SIZE)
    vocabulary = Vocabulary.of_source()
    print(
        f"{tiny.parameters(model) / 1e6:.2f} M parameters, {len(vocabulary.core)} classes, "
        f"{len(vocabulary.extra)} other names, steps {done} to {options.steps}"
    )
    model.train()
    stream = batches(vocabulary, options.seed, done, options.steps)
    start = time.perf_counter()
    for step, (pixels, captions) in enumerate(
        track(stream, "training", total=options.steps - done), done
    ):
        for group in optimiser.param_groups:
            group["lr"] = options.rate * _schedule(step, options.steps)
        images = torch.from_numpy(normalised(pixels, preprocess))
        images = images.contiguous(memory_format=torch.channels_last)
        loss = contrastive(model, images, torch.from_numpy(tokenizer(captions)))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0.0, float(np.log(100.0)))
        losses.append(round(float(loss.detach()), 4))
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == options.steps:
            spent = seconds + time.perf_counter() - start
            print(f"step {step + 1}: loss {np.mean(losses[-SAVE_EVERY:]):.3f}, {spent:.0f} s", flush=True)
            state = {"run": run, "model": model.state_dict(), "optimiser": optimiser.state_dict()}
            with replacing(checkpoint) as temporary:
                torch.save(state | {"done": step + 1, "seconds": spent, "losses": losses}, temporary)
    save(model, options.out)
    means = [float(np.mean(losses[i : i + SAVE_EVERY])) for i in range(0, len(losses), SAVE_EVERY)]
    images_seen = options.steps * NAMES_PER_BATCH * IMAGES_PER_NAME
    report = run | {"seconds": round(spent), "images": images_seen, "loss": means}
    (options.work / "training.json").write_text(json.dumps(report, indent=1) + "\n")


def contrastive(model: torch.nn.Module, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """CLIP's symmetric loss; a caption has several images, each as good as the other."""
    image = model.encode_image(images, normalize=True)
    text = model.encode_text(tokens, normalize=True)
    logits = model.logit_scale.exp() * image @ text.T  # (names * images, names)
    owner = torch.arange(len(text)).repeat_interleave(len(image) // len(text))
    to_text = F.cross_entropy(logits, owner)
    per_image = F.log_softmax(logits, dim=0)[torch.arange(len(image)), owner]
    return (to_text - per_image.mean()) / 2


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


def _groups(model: torch.nn.Module) -> list[dict[str, object]]:
    """Weight decay on matrices only, as CLIP does."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def _schedule(step: int, steps: int) -> float:
    """Linear warm-up, then a half cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1.0 + float(np.cos(np.pi * (step - WARM_UP) / max(1, steps - WARM_UP))))


if __name__ == "__main__":
    main()
