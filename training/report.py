"""Measure the trained tiny CLIP and write docs/tiny_clip.md with the picture of its losses."""

from __future__ import annotations

import json

import model as tiny  # first: it makes torchvision importable
import numpy as np
import torch

from soba.bench.metrics import accuracy
from soba.datasets.icons import DOMAINS, icons
from soba.encode.features import encode
from soba.encode.onnx import OnnxEncoder
from soba.encode.prompts import classifier, templates
from soba.encode.tokens import ByteTokenizer
from soba.report.plots import curves

PROMPTS = ("icon", "single", "seven", "eighty")
PER_CLASS = 8
SEED = 12345  # of the drawings: not those of the demo


def main() -> None:
    run = json.loads((tiny.ROOT / "out" / "training" / "training.json").read_text())
    encoder = OnnxEncoder.tiny()
    rows = [accuracies(encoder, domain) for domain in DOMAINS]
    losses = run["loss"]
    steps = run["every"] * np.arange(1, len(losses) + 1)
    titles = {
        "seen": "image to its name",
        "read": "caption to its name",
        "contrast": "images and captions, contrastive",
    }
    curves(
        tiny.ROOT / "docs" / "tiny_clip.png",
        {
            title: (steps, np.array([row.get(k, np.nan) for row in losses]))
            for k, title in titles.items()
        },
        title="training of the tiny CLIP",
        x_label="step",
        y_label="loss",
    )
    (tiny.ROOT / "docs" / "tiny_clip.md").write_text(text(run, encoder, rows))
    print("docs/tiny_clip.md")


def accuracies(encoder: OnnxEncoder, domain: str) -> list[str]:
    """Zero-shot accuracy of a domain under each set of prompts."""
    images = icons(domain, PER_CLASS, seed=SEED)
    features = np.concatenate([part.features for part in encode(encoder, images)])
    cells = [f"{domain} ({DOMAINS[domain].mirrors})", str(len(images.class_names))]
    for name in PROMPTS:
        weights = classifier(encoder.encode_texts, images.class_names, templates(name))
        cells.append(f"{accuracy(features @ weights.T, images.labels):.1f}")
    return cells


def difference(encoder: OnnxEncoder) -> tuple[float, float]:
    """Largest difference of the ONNX towers from torch."""
    clip = tiny.trained_model().eval()
    rng = np.random.default_rng(0)
    size = encoder.preprocess.size
    pixels = rng.standard_normal((8, 3, size, size)).astype(np.float32)
    sentences = [template.format("book open") for template in templates("seven")]
    tokens = ByteTokenizer(tiny.config()["text_cfg"]["context_length"])(sentences)
    with torch.inference_mode():
        image = clip.encode_image(torch.from_numpy(pixels), normalize=True).numpy()
        sentence = clip.encode_text(torch.from_numpy(tokens), normalize=True).numpy()
    return (
        float(np.abs(encoder.encode_pixels(pixels) - image).max()),
        float(np.abs(encoder.encode_texts(sentences) - sentence).max()),
    )


def text(run: dict[str, object], encoder: OnnxEncoder, rows: list[list[str]]) -> str:
    clip = tiny.trained_model()
    sizes = {file.name: file.stat().st_size / 1e6 for file in sorted(tiny.TINY.iterdir())}
    stored = {name: size for name, size in sizes.items() if not name.startswith("__")}
    image, sentence = difference(encoder)
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    visual = tiny.parameters(clip.visual) / 1e6
    files = ", ".join(f"{name} {size:.2f} MB" for name, size in stored.items())
    return f"""# The tiny CLIP

Our own dual encoder, so that everything here runs offline: trained by `make tiny` on icons of Font
Awesome and Material Design Icons, {run["images"]:,} pictures in {run["steps"]} steps,
{int(run["seconds"]) / 60:.0f} minutes on two cores. It has seen nothing of Phosphor and Remix,
whose drawings are the shifted domains. It knows icons and nothing else: for photographs use a real
CLIP.

| part | parameters |
|---|---|
| image tower: CLIP's ResNet, {encoder.preprocess.size} px | {visual:.2f} M |
| text tower: transformer over bytes | {tiny.parameters(clip) / 1e6 - visual:.2f} M |

{files}: {sum(stored.values()):.2f} MB in all. Weights are stored in half precision, computed with
in float32. The ONNX towers differ from torch by {image:.0e} (images) and {sentence:.0e} (texts) at
most. The logit scale is {encoder.logit_scale:.1f}: the likeliest on new pictures of the source
families (training itself, on harder pictures and more names, ended at {run["learned_scale"]:.1f}).

Zero-shot top-1 in percent, {PER_CLASS} new pictures per class, under four sets of prompts:

| domain | classes | {" | ".join(PROMPTS)} |
|---|---|{"---|" * len(PROMPTS)}
{table}

![losses](tiny_clip.png)

Each batch has 96 names with two drawings each, 58 of the 224 classes and 38 of other one-word
names, so that the text tower learns to read. A third of the drawings get another pen: thicker,
thinner, or only the outline. Most pictures are small, 64 px, and the last 1,200 steps have those
of 96 px. For the first 1,200 steps the image tower learns alone, against a learned embedding of
each name; then captions from 95 templates join with CLIP's symmetric
contrastive loss. Two untrained towers, one of which has to read letters, learned nothing from each
other in 200 steps; that is why. A killed run goes on from its last checkpoint.
"""


if __name__ == "__main__":
    main()
