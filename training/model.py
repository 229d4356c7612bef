"""The tiny CLIP as an open_clip model, from soba/tiny: with its weights, or without."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "soba" / "tiny"
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

import torchvision_shim  # the CPU build of torch wants it

torchvision_shim.install()

from open_clip.model import CLIP

WEIGHTS = TINY / "open_clip_model.safetensors"
CONFIG = TINY / "open_clip_config.json"


def config() -> dict[str, Any]:
    return json.loads(CONFIG.read_text())["model_cfg"]


def new_model() -> CLIP:
    """With random weights, as torch's seed has it."""
    settings = config()
    return CLIP(settings["embed_dim"], settings["vision_cfg"], settings["text_cfg"])


def trained_model() -> CLIP:
    """With the weights of soba/tiny."""
    model = new_model()
    model.load_state_dict(safetensors.torch.load_file(WEIGHTS))
    return model


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
