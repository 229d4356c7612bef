"""Which methods can run here, and what the others lack."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from soba.bench.places import Model
from soba.bench.plan import Plan
from soba.registry import card, list_methods
from soba.tune._torch import torch


def runnable(
    plan_of: Callable[..., Plan], model: Model | None = None
) -> tuple[list[str], dict[str, str]]:
    """All methods that have what they need here, and what the others lack: name -> why.

    Of a model it is asked, once, whether gradients pass through its text tower.
    """
    of_the_data = plan_of("zero-shot").problems()  # not the methods' fault
    # Where the data stop the run, no model is opened.
    lacking_tower = cache(lambda: None if model is None or of_the_data else _lacking_tower(model))
    names: list[str] = []
    reasons: dict[str, str] = {}
    for name in list_methods():
        lacking: str | None
        try:
            problems = [p for p in plan_of(name).problems() if p not in of_the_data]
            lacking = problems[0].removeprefix(f"{name}: ") if problems else None
            if lacking is None and "gradients" in card(name).needs:
                _ = torch.Tensor  # imports it
        except ImportError as error:
            lacking = str(error)
        if lacking is None and card(name).tunes_prompts:
            lacking = lacking_tower()
        if lacking is None:
            names.append(name)
        else:
            reasons[name] = lacking
    return names, reasons


def _lacking_tower(model: Model) -> str | None:
    """Why no prompts can be tuned with a model; what is wrong with the model itself is raised."""
    _ = model.encoder
    try:
        tunable = model.tunable
    except (ImportError, ValueError) as error:
        return str(error)
    return f"no gradients pass through {tunable.name}" if tunable.text_tower is None else None
