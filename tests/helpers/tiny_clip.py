"""A small open_clip model with random weights, for tests; and open_clip itself, made importable."""

from __future__ import annotations

import importlib

import numpy as np
import torch
import torchvision_shim

torchvision_shim.install()  # before open_clip: take `open_clip` from here

open_clip = importlib.import_module("open_clip")
openclip = importlib.import_module("soba.encode.openclip")
Preprocess = importlib.import_module("soba.encode.preprocess").Preprocess

CONTEXT = 40
CONFIG = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {
        "context_length": CONTEXT,
        "vocab_size": 258,
        "width": 24,
        "heads": 2,
        "layers": 2,
    },
}


def tokenizer(texts):
    """Bytes between a start token and an end token, the highest id."""
    rows = np.zeros((len(texts), CONTEXT), np.int64)
    for row, text in zip(rows, texts, strict=True):
        ids = [256, *text.encode()[: CONTEXT - 2], 257]
        row[: len(ids)] = ids
    return rows


def tiny_clip(seed=0, custom_text=False, **options):
    """An encoder of a few thousand weights."""
    torch.manual_seed(seed)
    kind = open_clip.CustomTextCLIP if custom_text else open_clip.CLIP
    return openclip.OpenClip(kind(**CONFIG), tokenizer, Preprocess(size=32), **options)
