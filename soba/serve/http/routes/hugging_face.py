"""Zero-shot image classification in the shape of Hugging Face's task.

`huggingface_hub.InferenceClient(model=URL)` asks here by changing one URL. Labels come with each
request, so nothing is stored and nothing learned, unless a stream of exactly these classes is
named.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from soba.encode.features import Encoded
from soba.serve.http import schemas
from soba.serve.http.desk import COMMON, AtDesk, Desk
from soba.serve.http.problems import responses
from soba.serve.http.uploads import picture_of
from soba.serve.live_stream import Conflict
from soba.serve.service import LimitExceeded

router = APIRouter(prefix="/v1/hf", responses=COMMON, tags=["Hugging Face"])
_TEMPLATE = "This is a photo of {}."  # transformers' own


class Parameters(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    candidate_labels: Annotated[list[schemas.ClassName], Field(min_length=1)]
    hypothesis_template: Annotated[str, Field(max_length=1000)] | None = None


class ZeroShotTask(BaseModel):
    """An image, and what it may show."""

    model_config = ConfigDict(extra="ignore", strict=True)
    inputs: str = Field(description="The image, in base64.")
    parameters: Parameters


class Score(BaseModel):
    score: float
    label: str


@router.post(
    "/zero-shot-image-classification",
    response_model=list[Score],
    responses=responses(409),
)
async def classify(
    desk: AtDesk,
    task: ZeroShotTask,
    stream: Annotated[str | None, Query(pattern=schemas.NAME)] = None,
) -> Any:
    """The labels with their scores, the best first; `stream` learns from the image, too."""
    labels = tuple(task.parameters.candidate_labels)
    if len(labels) > desk.service.options.max_prompts:
        raise LimitExceeded(f"over the limit of {desk.service.options.max_prompts} labels")
    scores = await desk.run(lambda: _scores(desk, task, labels, stream))
    order = np.argsort(-scores, kind="stable")
    return [{"score": float(scores[place]), "label": labels[place]} for place in order]


def _scores(
    desk: Desk, task: ZeroShotTask, labels: tuple[str, ...], stream: str | None
) -> np.ndarray:
    service = desk.service
    with service.admission.of(1):
        part = service.encode([picture_of("image", task.inputs, service.options)])
        for why in part.broken.values():
            raise ValueError(f"image: {why}")
        if stream is not None:
            return _learned(desk, part, labels, stream)
        template = task.parameters.hypothesis_template or _TEMPLATE
        scores: np.ndarray = service.label_sets.scores(part.features, labels, template)[0]
        return scores


def _learned(desk: Desk, part: Encoded, labels: tuple[str, ...], stream: str) -> np.ndarray:
    with desk.service.use(stream) as live:
        names = live.stream.view().names
        if sorted(names) != sorted(labels):
            raise Conflict(f"stream {stream!r} has other classes than these labels")
        reply = live.answer(part, None, learn=True, top=len(names))
        chances = dict(reply.answers[0].top)
        return np.array([chances[label] for label in labels])
