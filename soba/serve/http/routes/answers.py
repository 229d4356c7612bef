"""Images in, answers out; and what people say of the answers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from soba.serve.http import schemas
from soba.serve.http.bodies import CLASSIFY_BODY
from soba.serve.http.describe import describe_broken, describe_feedback, describe_reply, sample_name
from soba.serve.http.desk import COMMON, AtDesk, Desk, StreamName
from soba.serve.http.problems import AllBroken, responses
from soba.serve.http.uploads import Upload, read_upload
from soba.serve.live_stream import Conflict, LiveStream, Reply

router = APIRouter(prefix="/v1/streams", responses=COMMON, tags=["answers"])


@router.post(
    "/{name}/classify",
    response_model=schemas.Classified,
    responses=responses(409, 415),
    openapi_extra=CLASSIFY_BODY,
)
async def classify(
    desk: AtDesk,
    request: Request,
    response: Response,
    name: StreamName,
    learn: Annotated[bool, Query(description="false: only look.")] = True,
    top: Annotated[int, Query(ge=1, le=1000, description="Candidates in an answer.")] = 3,
    min_confidence: Annotated[float | None, Query(ge=0.0, le=1.0)] = None,
    id: Annotated[list[schemas.Id] | None, Query(description="Of a raw body's images.")] = None,
) -> Any:
    """Answer images; each is learned from, unless the stream is frozen or only looked at."""
    options = desk.service.options
    upload = await read_upload(request, options, query_ids=id)
    least = options.min_confidence if min_confidence is None else min_confidence

    def answered() -> tuple[Reply, schemas.Classified]:
        service = desk.service
        with service.admission.of(upload.size), service.use(name) as live:
            return _answered(desk, live, upload, learn, top, least)

    reply, told = await desk.run(answered)
    desk.metrics.answered(reply, sum(answer.unsure and not answer.error for answer in told.answers))
    response.headers["Server-Timing"] = f"commit;dur={1000 * reply.commit_seconds:.3f}"
    return told


def _answered(
    desk: Desk, live: LiveStream, upload: Upload, learn: bool, top: int, least: float
) -> tuple[Reply, schemas.Classified]:
    if upload.features is None:
        part = desk.service.encode(upload.pictures)
    else:
        part = desk.service.features(upload.features)
    if not len(part.indices):
        names = upload.ids or [sample_name(0)] * len(part.images)
        broken = [
            describe_broken(name, image.name, part.broken[place])
            for place, (name, image) in enumerate(zip(names, part.images, strict=True))
        ]
        raise AllBroken(f"{broken[0].image}: {broken[0].error}", broken)
    reply = live.answer(part, upload.ids, learn=learn, top=top)
    ids = upload.ids or [sample_name(max(0, image.content_id)) for image in part.images]
    live.remember(ids, reply.answers)
    return reply, describe_reply(live.name, reply, ids, least)


@router.post("/{name}/feedback", response_model=schemas.FeedbackCounts, responses=responses(409))
async def give_feedback(desk: AtDesk, name: StreamName, given: schemas.FeedbackGiven) -> Any:
    """Say what an image shows; nothing is learned from it."""

    def said(live: LiveStream) -> schemas.FeedbackCounts:
        if given.label not in live.stream.view().names:
            raise ValueError(f"the stream has no class {given.label!r}")
        known = live.answered(given.id)
        if given.answered is not None and given.zero_shot is not None:
            known = given.answered, given.zero_shot
        if known is None:
            raise Conflict(
                f"no answer to {given.id!r} is remembered: say what was answered, adapted and by "
                "zero-shot"
            )
        desk.service.ledger.say(live.name, given.id, given.label, *known)
        live.draw(anew=True)
        return describe_feedback(live.feedback())

    return await desk.use(name, said)
