"""What a folder of transformers says about its model, read without transformers.

Its image processors come in two makes, with torchvision and without, that give slightly different
pixels. Their settings are all that is needed here: see `soba.encode.preprocess.Preprocess`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soba._files import parse_json
from soba.encode.preprocess import OPENAI_MEAN, OPENAI_STD, Preprocess

CLIP, SIGLIP, NAFLEX = "clip", "siglip", "siglip2"
CLASSES = {CLIP: "CLIPModel", SIGLIP: "SiglipModel", NAFLEX: "Siglip2Model"}
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class HfFolder:
    """A folder with a model that can be opened: which kind it is of, and how it wants images."""

    path: Path
    kind: str
    preprocess: Preprocess


def read_folder(path: Path) -> HfFolder:
    """What is in a folder; raises where it holds no model that can be opened."""
    config = _json(path / "config.json")
    if config is None:
        raise ValueError(f"{path}: no config.json in it, so it is no model of transformers")
    kind = config.get("model_type")
    if kind not in CLASSES:
        raise ValueError(
            f"{path}: a model of type {kind!r}, where {', '.join(CLASSES)} can be opened"
        )
    if not any(file.is_file() for pattern in _WEIGHTS for file in path.glob(pattern)):
        raise ValueError(f"{path}: no weights in it, such as model.safetensors")
    try:
        preprocess = read_preprocess(_processor(path), kind)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: images cannot be made ready for it: {error}") from error
    vision = config.get("vision_config") or {}
    size = vision.get("image_size", 224) if kind != NAFLEX else preprocess.size
    if size != preprocess.size:
        raise ValueError(
            f"{path}: a model of {size} x {size} pixels, whose images would be made ready as "
            f"{preprocess.size} x {preprocess.size}"
        )
    return HfFolder(path, kind, preprocess)


def check_name(name: str) -> None:
    """Say what is wrong with a folder, or that there is none; names on the hub are not looked at.

    >>> check_name("openai/clip-vit-base-patch16")
    """
    path = Path(name).expanduser()
    if path.is_dir():
        read_folder(path)
    elif name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ValueError(f"no encoder 'hf:{name}': no such folder")


def read_preprocess(settings: Mapping[str, Any], kind: str = CLIP) -> Preprocess:
    """What transformers calls a preprocessor_config.

    What is not said is what the image processors of this kind of model take.

    >>> read_preprocess({"size": {"shortest_edge": 256}, "crop_size": 224}).resized
    256
    >>> read_preprocess({"size": {"height": 384, "width": 384}}, "siglip").resize
    'squash'
    """
    for step in ("do_resize", "do_rescale"):
        if settings.get(step) is False:
            raise ValueError(f"it leaves out a step that all images need: {step} is false")
    factor = settings.get("rescale_factor") or 1 / 255
    if not math.isclose(factor, 1 / 255, rel_tol=1e-3):
        raise ValueError(f"pixels are divided by 255, not multiplied by {factor}")
    resample = settings.get("resample", 2 if kind == NAFLEX else 3)
    if resample not in _RESAMPLING:
        raise ValueError(f"resample is {resample!r}, where {_RESAMPLING} are known")
    mean, std = (OPENAI_MEAN, OPENAI_STD) if kind == CLIP else (_HALF, _HALF)
    if settings.get("do_normalize") is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    else:
        mean, std = settings.get("image_mean") or mean, settings.get("image_std") or std
    size, resize, resized = _sizes(settings, kind)
    return Preprocess(
        size,
        _three(mean),
        _three(std),
        _RESAMPLING[resample],
        resize,
        resized=resized,
        crop="floored",
    )


def _sizes(settings: Mapping[str, Any], kind: str) -> tuple[int, str, int | None]:
    """The side of the square, how images are resized, and to which side if it is another one."""
    if kind == NAFLEX:
        # These models take any shape of so many patches. A square of them is what all images
        # become here, as in the models of one size: square images lose nothing by it.
        patch, most = settings.get("patch_size") or 16, settings.get("max_num_patches") or 256
        return int(patch) * math.isqrt(int(most)), "squash", None
    crops = settings.get("do_center_crop")
    crops = kind == CLIP if crops is None else bool(crops)
    size = settings.get("size") or 224
    if isinstance(size, Mapping) and size.get("shortest_edge") is not None:
        shortest = True
        side = int(size["shortest_edge"])
    else:  # CLIP's oldest settings say a number, and mean the shortest side
        shortest = isinstance(size, int) and kind == CLIP
        side = _side(size, "size")
    crop = _side(settings.get("crop_size") or side, "crop_size") if crops else side
    if shortest and not crops:
        raise ValueError("the shortest side is resized and nothing is cut off: images of any shape")
    if crop > side:
        raise ValueError(f"the centre of {crop} pixels is cut out of {side} pixels")
    return crop, "shortest" if shortest else "squash", None if crop == side else side


def _side(size: Any, what: str) -> int:
    """The side of a square that is said as a number, or as height and width."""
    if isinstance(size, Mapping):
        height, width = size.get("height"), size.get("width")
        if height is None or height != width:
            raise ValueError(f"{what} is no square: {dict(size)}")
        return int(height)
    return int(size)


def _three(values: Any) -> tuple[float, float, float]:
    values = [values] * 3 if isinstance(values, int | float) else values
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _processor(path: Path) -> dict[str, Any]:
    """The settings of the image processor; newer folders keep those of all processors in one."""
    settings = _json(path / "preprocessor_config.json")
    if settings is None:
        settings = (_json(path / "processor_config.json") or {}).get("image_processor")
    if not isinstance(settings, dict):
        raise ValueError("neither preprocessor_config.json nor processor_config.json says how")
    return settings


def _json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file."""
    if not path.is_file():
        return None
    try:
        content = parse_json(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object with settings")
    return content
