"""The gate in front of all routes: who may ask, under which name, and how much they may send.

A page of a stranger can make a browser post to a server on loopback, and a name of a stranger can
be made to lead there. So a request must name this server as its host, and where a browser says
which page it comes from, that page must be this server's own.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soba.serve.http.keys import Keys
from soba.serve.http.metrics import Metrics
from soba.serve.http.problems import problem
from soba.serve.options import Options

_log = logging.getLogger("soba.serve.access")
_BODIES = 8  # of the largest size, at a time
_PROBES = ("/livez", "/readyz")  # asked by schedulers, under whatever name they know
# Others are counted together: a stranger could name any number of them.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; "
    "object-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def server_names(options: Options) -> frozenset[str]:
    """The names that requests may call this server by."""
    names = {options.host, *options.allow_hosts}
    if is_loopback(options.host):
        names |= {"localhost", "127.0.0.1", "::1"}
    elif options.host in ("0.0.0.0", "::"):  # all addresses of this machine
        host = socket.gethostname()
        names |= {"localhost", "127.0.0.1", "::1", host}
        names |= {str(info[4][0]) for info in _addresses(host)}
    return frozenset(name.lower() for name in names)


def _addresses(host: str) -> list[Any]:
    try:
        return socket.getaddrinfo(host, None)
    except OSError:
        return []


@dataclass
class _Body:
    size: int = 0


class Gate:
    """ASGI middleware: refuses, counts, and says what was asked."""

    def __init__(
        self, app: ASGIApp, *, options: Options, keys: Keys | None, metrics: Metrics
    ) -> None:
        self._app, self._options, self._keys, self._metrics = app, options, keys, metrics
        self._names = server_names(options)
        self._receiving = 0  # bytes of all bodies that are being worked on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, body = time.perf_counter(), 500, _Body()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                if not scope["path"].startswith("/v1/"):  # pages of two versions do not mix
                    headers.append((b"cache-control", b"no-cache"))
                message["headers"] = [*message.get("headers", []), *headers]
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, sending)
            else:
                await self._app(scope, self._bounded(scope, receive, body), sending)
        finally:
            self._receiving -= body.size
            self._say(scope, status, time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> Any:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"]
        if path not in _PROBES:
            if _name_of(f"//{headers.get(b'host', '')}") not in self._names:
                return problem(403, "this server is not the host that the request names")
            origin = headers.get(b"origin")
            if origin is not None and not self._is_ours(origin, headers.get(b"host", "")):
                return problem(403, "the page that this request comes from is not this server's")
        limit = self._limit(path)
        if _length(headers) > limit:
            return problem(413, f"the body is over the limit of {limit} bytes")
        if self._keys is not None and (path.startswith("/v1/") or path == "/metrics"):
            owner = self._keys.owner(headers.get(b"authorization"))
            if owner is None:
                hint = {"WWW-Authenticate": "Bearer"}
                return problem(401, "needs a key: Authorization: Bearer KEY", hint)
            scope.setdefault("state", {})["owner"] = owner
        return None

    def _is_ours(self, origin: str, host: str) -> bool:
        try:
            place = urlsplit(origin).netloc
        except ValueError:
            return False
        return place.lower() == host.lower() and _name_of(origin) in self._names

    def _limit(self, path: str) -> int:
        return self._options.max_import if path.endswith("/import") else self._options.max_body

    def _bounded(self, scope: Scope, receive: Receive, body: _Body) -> Receive:
        """The body, as long as it is within bounds: its length need not be said beforehand."""
        limit = self._limit(scope["path"])

        async def receiving() -> Message:
            message = await receive()
            length = len(message.get("body", b""))
            body.size += length
            self._receiving += length
            if body.size > limit:
                raise HTTPException(413, f"the body is over the limit of {limit} bytes")
            if self._receiving > _BODIES * max(limit, self._options.max_body):
                raise HTTPException(429, "too much is being sent at once", {"Retry-After": "1"})
            return message

        return receiving

    def _say(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.request(method, route, status, seconds)
        # As it was sent: what is decoded may hold ends of lines, and so lines of its own.
        path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")
        _log.info(
            "%s %s %d",
            scope["method"],
            path,
            status,
            extra={
                "method": scope["method"],
                "path": path,
                "status": status,
                "seconds": round(seconds, 6),
                "owner": scope.get("state", {}).get("owner"),
            },
        )


def _name_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _length(headers: dict[bytes, str]) -> int:
    length = headers.get(b"content-length", "0")
    return int(length) if length.isdigit() else 0
