"""What every route has at hand: the service, and threads to work in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import anyio
from fastapi import Depends, Path, Request

from soba.serve.http import schemas
from soba.serve.http.describe import describe_stream
from soba.serve.http.metrics import Metrics
from soba.serve.http.problems import responses
from soba.serve.live_stream import LiveStream
from soba.serve.service import Service

T = TypeVar("T")
COMMON = responses(400, 401, 403, 404, 413, 422, 429, 500, 503)  # what any route may answer with


@dataclass(frozen=True)
class Desk:
    """A service behind routes. Its work waits for disks and threads, so it never runs in the loop
    that listens."""

    service: Service
    metrics: Metrics
    threads: anyio.CapacityLimiter
    looking: anyio.CapacityLimiter  # looks have threads of their own: they wait for no learner

    async def run(self, work: Callable[[], T], *, looks: bool = False) -> T:
        """Do something in a thread."""
        limiter = self.looking if looks else self.threads
        return await anyio.to_thread.run_sync(work, limiter=limiter)

    async def use(self, name: str, work: Callable[[LiveStream], T]) -> T:
        """Do something with a stream."""

        def working() -> T:
            with self.service.use(name) as live:
                return work(live)

        return await self.run(working)

    async def change(self, name: str, work: Callable[[LiveStream], Any]) -> schemas.StreamInfo:
        """Change a stream; how it is then."""

        def changing(live: LiveStream) -> schemas.StreamInfo:
            work(live)
            live.draw(anew=True)
            return self.describe(live)

        return await self.use(name, changing)

    def describe(self, live: LiveStream) -> schemas.StreamInfo:
        """A stream as it is now."""
        return describe_stream(live, self.service.encoder.name)


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


def _owner(request: Request) -> str:
    return str(request.scope.get("state", {}).get("owner", ""))


AtDesk = Annotated[Desk, Depends(_desk)]
Owner = Annotated[str, Depends(_owner)]
StreamName = Annotated[str, Path(pattern=schemas.NAME, description="Of a stream.")]
