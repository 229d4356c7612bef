"""A server from its start to its end: listen, warm up, serve, and leave without losing anything.

When it is asked to end it first says that it is not ready, so that no new traffic is sent here,
then stops listening, finishes what has begun, and lets go of the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from soba.encode.encoder import Encoder
from soba.serve.databases import Database
from soba.serve.http.app import Readiness, create_app
from soba.serve.http.gate import is_loopback
from soba.serve.http.metrics import Metrics
from soba.serve.options import Options
from soba.serve.service import Service

_FINISH_SECONDS = 30  # for requests that have begun


class _Server(uvicorn.Server):
    """uvicorn's, which says that it is not ready a while before it stops listening."""

    def __init__(self, config: uvicorn.Config, readiness: Readiness, drain: float) -> None:
        super().__init__(config)
        self._readiness, self._drain = readiness, drain
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._readiness.draining or self._loop is None:  # asked twice: at once
            super().handle_exit(sig, frame)
            return
        self._readiness.draining = True
        self._loop.call_soon_threadsafe(self._loop.call_later, self._drain, self._stop)
        # What waits for a database that hangs would wait for ever: then nothing is acknowledged.
        deadline = threading.Timer(self._drain + _FINISH_SECONDS + 10, os._exit, (1,))
        deadline.daemon = True
        deadline.start()

    def _stop(self) -> None:
        self.should_exit = True


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def check_reach(options: Options) -> None:
    """Raise if strangers could reach the server and nothing would hold them back."""
    if options.keys_file is None and not is_loopback(options.host):
        raise ValueError(
            f"{options.host} can be reached by others: a server that is not on loopback needs "
            "--keys-file"
        )


def run_server(
    encoder: Encoder,
    database: Database,
    options: Options,
    *,
    begin: Callable[[Service], None],
    ready: Callable[[str], None],
) -> None:
    """Serve until a signal ends it.

    `begin` is called before anyone can ask anything, `ready` with the address once all can.
    """
    check_reach(options)
    metrics, readiness = Metrics(), Readiness()
    listening = _bound(options)
    service = Service(encoder, database, options, metrics)
    try:
        service.warm_up()
        begin(service)
        app = create_app(service, metrics, readiness)
        config = uvicorn.Config(
            app,
            log_config=None,
            timeout_graceful_shutdown=_FINISH_SECONDS,
            server_header=False,
            lifespan="off",
        )
        host, port = listening.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        _Server(config, readiness, options.drain_seconds).run(sockets=[listening])
    finally:
        service.close()
        listening.close()


def _bound(options: Options) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share the port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((options.host, options.port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        where = f"{options.host}:{options.port}"
        raise OSError(f"cannot listen on {where}: {error.strerror or error}") from error
    return listening
