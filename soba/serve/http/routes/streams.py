"""Streams: which there are, what they are, what happened to them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from starlette.exceptions import HTTPException

from soba.serve.http import schemas
from soba.serve.http.describe import describe_queue
from soba.serve.http.desk import COMMON, AtDesk, Owner, StreamName
from soba.serve.http.problems import responses
from soba.serve.live_stream import LiveStream

router = APIRouter(prefix="/v1/streams", responses=COMMON, tags=["streams"])


@router.get("", response_model=schemas.StreamList)
async def list_streams(desk: AtDesk) -> Any:
    """All streams of the database."""
    return await desk.run(lambda: {"streams": desk.service.list()})


@router.post(
    "",
    response_model=schemas.StreamInfo,
    status_code=201,
    responses=responses(409)
    | {200: {"model": schemas.StreamInfo, "description": "It is there already"}},
)
async def create_stream(
    desk: AtDesk, new: schemas.NewStream, owner: Owner, response: Response
) -> Any:
    """Make a stream; the same one again changes nothing."""

    def made() -> bool:
        return desk.service.create(
            new.name, new.classes, templates=new.templates, method=new.method, owner=owner
        )

    response.status_code = 201 if await desk.run(made) else 200
    return await desk.change(new.name, lambda live: None)


@router.get("/{name}", response_model=schemas.StreamInfo, responses=responses(409))
async def read_stream(desk: AtDesk, name: StreamName) -> Any:
    """A stream as it is now."""
    return await desk.use(name, desk.describe)


@router.delete("/{name}", status_code=204)
async def remove_stream(desk: AtDesk, name: StreamName) -> None:
    """Remove a stream with all that it has learned."""
    await desk.run(lambda: desk.service.remove(name))


@router.put("/{name}/classes", response_model=schemas.StreamInfo, responses=responses(409))
async def change_classes(desk: AtDesk, name: StreamName, new: schemas.NewClasses) -> Any:
    """The same samples under other classes: they are scored anew."""
    return await desk.change(
        name, lambda live: desk.service.change_classes(live, new.classes, new.templates)
    )


@router.get(
    "/{name}/queue/{class_name:path}", response_model=schemas.ClassQueue, responses=responses(409)
)
async def read_queue(desk: AtDesk, name: StreamName, class_name: str) -> Any:
    """The samples that speak for a class: its queue, or those of the sample it explains best."""

    def listed(live: LiveStream) -> schemas.ClassQueue:
        if class_name not in live.stream.view().names:
            raise HTTPException(404, f"the stream has no class {class_name!r}")
        return live.stream._replica.read(lambda state: describe_queue(state, class_name))

    return await desk.use(name, listed)


@router.get("/{name}/history", response_model=schemas.History, responses=responses(409))
async def read_history(
    desk: AtDesk, name: StreamName, limit: Annotated[int, Query(ge=1, le=10_000)] = 100
) -> Any:
    """What happened to a stream, newest first; samples go when the log is trimmed."""
    changes = await desk.use(name, lambda live: live.stream.history(limit))
    return {"changes": [change._asdict() for change in changes]}


@router.get("/{name}/timeline", response_model=schemas.Timeline, responses=responses(409))
async def read_timeline(desk: AtDesk, name: StreamName) -> Any:
    """The points of a stream's curves, oldest first."""

    def listed(live: LiveStream) -> dict[str, Any]:
        live.draw()
        return {"points": desk.service.ledger.points(name)}

    return await desk.use(name, listed)
