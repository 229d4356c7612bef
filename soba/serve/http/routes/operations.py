"""What an operator does to a stream: guard it, freeze it, roll it back, carry it elsewhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import anyio
from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from soba.serve.http import schemas
from soba.serve.http.bodies import GUARD_BODY, IMPORT_BODY
from soba.serve.http.desk import COMMON, AtDesk, StreamName
from soba.serve.http.problems import responses
from soba.serve.http.uploads import read_upload
from soba.serve.live_stream import LiveStream

_CHUNK = 1 << 18  # bytes
router = APIRouter(
    prefix="/v1/streams/{name}", responses=COMMON | responses(409), tags=["operations"]
)


@router.put(
    "/guard",
    response_model=schemas.StreamInfo,
    responses=responses(415),
    openapi_extra=GUARD_BODY,
)
async def set_guard(desk: AtDesk, request: Request, name: StreamName) -> Any:
    """A few labelled images that tell when the stream was taught rubbish."""
    upload = await read_upload(request, desk.service.options, labelled=True)
    labels = upload.labels or []
    with desk.service.admission.of(upload.size):
        return await desk.change(
            name, lambda live: desk.service.set_guard(live, upload.pictures, labels)
        )


@router.delete("/guard", response_model=schemas.StreamInfo)
async def remove_guard(desk: AtDesk, name: StreamName) -> Any:
    """No guard any more."""
    return await desk.change(name, lambda live: live.stream.remove_guard())


@router.post("/freeze", response_model=schemas.StreamInfo)
async def freeze(desk: AtDesk, name: StreamName) -> Any:
    """Answer without learning."""
    return await desk.change(name, lambda live: live.stream.freeze())


@router.post("/unfreeze", response_model=schemas.StreamInfo)
async def unfreeze(desk: AtDesk, name: StreamName) -> Any:
    """Learn again; refused while the guard fails."""
    return await desk.change(name, lambda live: live.stream.unfreeze())


@router.post("/reset", response_model=schemas.StreamInfo)
async def reset(desk: AtDesk, name: StreamName) -> Any:
    """Forget all samples."""
    return await desk.change(name, lambda live: live.stream.reset())


@router.post("/rollback", response_model=schemas.StreamInfo)
async def roll_back(desk: AtDesk, name: StreamName, to: schemas.RollbackTo) -> Any:
    """Go back to what was known at a version; ids learned since stay known."""
    return await desk.change(name, lambda live: desk.service.roll_back(live, to.version))


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {}}}},
)
async def export(desk: AtDesk, name: StreamName) -> Any:
    """The stream as a file for soba.load."""

    def saved(live: LiveStream) -> BinaryIO:
        """In a file that has no name by then, so that nothing of it is left, whoever hangs up."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.soba"
            live.stream.to_classifier().save(path)
            content = tempfile.TemporaryFile()  # noqa: SIM115, whoever sends it closes it
            with path.open("rb") as file:
                shutil.copyfileobj(file, content)
            content.seek(0)
            return content

    content = await desk.use(name, saved)
    length = os.fstat(content.fileno()).st_size
    return StreamingResponse(
        _chunks(content),
        media_type="application/octet-stream",
        headers={
            "Content-Length": str(length),
            "Content-Disposition": f'attachment; filename="{name}.soba"',
        },
    )


def _chunks(content: BinaryIO) -> Iterator[bytes]:
    with content:
        while chunk := content.read(_CHUNK):
            yield chunk


@router.post("/import", response_model=schemas.StreamInfo, openapi_extra=IMPORT_BODY)
async def import_state(desk: AtDesk, request: Request, name: StreamName) -> Any:
    """Go on from what a file of soba has learned; what was there goes."""
    await desk.use(name, lambda live: None)  # nothing is read for a stream that is not there
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.soba"
        async with await anyio.open_file(path, "wb") as file:
            async for chunk in request.stream():
                await file.write(chunk)
        return await desk.change(name, lambda live: desk.service.import_file(live, path))
