"""Errors as problem+json (RFC 9457): what went wrong, in a sentence, and never a traceback."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from soba.serve.admission import Busy
from soba.serve.guard import GuardFailed
from soba.serve.http.schemas import Answered, Problem
from soba.serve.live_stream import Conflict
from soba.serve.service import LimitExceeded
from soba.serve.store import Damaged, NoStream, StoreError

_log = logging.getLogger(__name__)
_RETRY = {"Retry-After": "1"}

# The first that fits. What a person gave is wrong where nothing else is said.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (Busy, 429),
    (StoreError, 503),
    (NoStream, 404),
    (Conflict, 409),
    (GuardFailed, 409),
    (LimitExceeded, 413),
    (Damaged, 500),
    (ValueError, 422),
    (TypeError, 422),
)


class AllBroken(ValueError):
    """No image of a request could be read; `answers` say of each why."""

    def __init__(self, detail: str, answers: list[Answered]) -> None:
        super().__init__(detail)
        self.answers = answers


def problem(
    status: int, detail: str, headers: dict[str, str] | None = None, **more: Any
) -> JSONResponse:
    """A response that says what is wrong."""
    content = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    return JSONResponse(
        content.model_dump() | more,
        status,
        headers=headers,
        media_type="application/problem+json",
    )


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: which errors a route may answer with."""
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {"application/problem+json": schema},
        }
        for status in statuses
    }


def of_error(error: Exception, database: str) -> JSONResponse:
    """The response to an error of whatever was asked for; where the database is, it leaves out."""
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if status == 500:
        _log.error("request failed", exc_info=error)
        return problem(500, "the server failed; its log says why")
    if isinstance(error, StoreError):
        _log.warning("%s", error)
        return problem(503, "the database did not answer: nothing was acknowledged", _RETRY)
    detail = str(error).replace(f"{database}: ", "")
    detail = " ".join(detail.encode("utf-8", "replace").decode().split())
    more: dict[str, Any] = {}
    if isinstance(error, AllBroken):
        more["answers"] = [answer.model_dump() for answer in error.answers]
    return problem(status, detail, _RETRY if status == 429 else None, **more)


def install(app: FastAPI, database: str) -> None:
    """Answer with problems, whatever raises."""

    async def raised(request: Request, error: Exception) -> JSONResponse:
        return of_error(error, database)

    async def refused(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == 405:  # the first route of a path knows its own method only
            headers["Allow"] = ", ".join(sorted(_methods(app, request)))
        return problem(error.status_code, str(error.detail), headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        said = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5]]
        return problem(422, "; ".join(said).encode("utf-8", "replace").decode())

    for kind, _ in _STATUS:
        app.add_exception_handler(kind, raised)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, raised)


def _methods(app: FastAPI, request: Request) -> set[str]:
    """The methods of all routes that have a request's path."""
    routes = (route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in routes for method in getattr(route, "methods", None) or ()}
