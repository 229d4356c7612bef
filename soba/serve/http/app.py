"""The application: streams, the page, and what operators ask."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import FastAPI
from fastapi import Path as InPath
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

import soba
from soba.encode.encoder import TINY
from soba.serve.http import problems, schemas
from soba.serve.http.desk import Desk
from soba.serve.http.examples import example_icons, example_png
from soba.serve.http.gate import Gate
from soba.serve.http.keys import Keys
from soba.serve.http.metrics import Metrics
from soba.serve.http.routes import answers, hugging_face, operations, streams
from soba.serve.service import Service

_PAGE = Path(__file__).parent.parent / "page"
_THREADS = 64  # requests that are worked on at once


class Readiness:
    """Whether traffic should come here: not before an image was encoded, nor on the way out."""

    def __init__(self) -> None:
        self.draining = False

    def problem(self, service: Service) -> str | None:
        """What speaks against it."""
        if self.draining:
            return "the server is about to end"
        if not service.warm:
            return "no image was encoded yet"
        if not service.database_answers():
            return "the database does not answer"
        return None


def create_app(service: Service, metrics: Metrics, readiness: Readiness) -> FastAPI:
    """The application for a service; the caller closes the service."""
    options = service.options
    app = FastAPI(
        title="soba",
        version=soba.__version__,
        summary="Zero-shot CLIP classifiers that get better while they run.",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    keys = None if options.keys_file is None else Keys(options.keys_file)
    app.state.desk = Desk(service, metrics, anyio.CapacityLimiter(_THREADS))
    metrics.watch(service)
    problems.install(app, service.database.name)
    for routes in (streams, answers, operations, hugging_face):
        app.include_router(routes.router)
    _server_routes(app, service)
    _operator_routes(app, service, metrics, readiness)
    app.mount("/static", StaticFiles(directory=_PAGE))
    app.add_middleware(Gate, options=options, keys=keys, metrics=metrics)
    _document(app)
    return app


def _server_routes(app: FastAPI, service: Service) -> None:
    refusals = problems.responses(401, 403, 404, 422)

    def has_examples() -> bool:
        return service.encoder.name == TINY and example_icons() is not None

    @app.get("/v1/server", response_model=schemas.ServerInfo, responses=refusals, tags=["server"])
    def server() -> Any:
        """What this server is and how much it takes."""
        options = service.options
        return {
            "version": soba.__version__,
            "encoder": service.encoder.name,
            "examples": has_examples(),
            "accept_features": options.accept_features,
            "limits": {
                "body_bytes": options.max_body,
                "images": options.max_images,
                "pixels": options.max_pixels,
                "prompts": options.max_prompts,
                "streams": options.max_streams,
            },
        }

    @app.get("/v1/examples", response_model=schemas.Examples, responses=refusals, tags=["server"])
    def examples() -> Any:
        """Icons to try the server with."""
        icons = example_icons() if has_examples() else None
        if icons is None:
            raise HTTPException(404, "examples are icons, for the tiny CLIP, with soba-tta[demo]")
        labels = icons.labels
        return {"classes": icons.drawn.class_names, "images": len(labels), "labels": labels}

    @app.get(
        "/v1/examples/{number}",
        response_class=Response,
        responses=refusals | {200: {"content": {"image/png": {}}}},
        tags=["server"],
    )
    def example(number: Annotated[int, InPath(ge=0, le=1 << 31)]) -> Response:
        """One of them."""
        icons = example_icons() if has_examples() else None
        if icons is None or number >= len(icons.order):
            raise HTTPException(404, f"there is no example {number}")
        return Response(example_png(number), media_type="image/png")


def _operator_routes(
    app: FastAPI, service: Service, metrics: Metrics, readiness: Readiness
) -> None:
    @app.get("/livez", response_class=PlainTextResponse, tags=["operations"])
    def livez() -> str:
        """Whether the process is alive."""
        return "alive"

    @app.get(
        "/readyz",
        response_class=PlainTextResponse,
        responses=problems.responses(503),
        tags=["operations"],
    )
    def readyz() -> Any:
        """Whether traffic should come here."""
        problem = readiness.problem(service)
        return "ready" if problem is None else problems.problem(503, problem)

    @app.get("/metrics", response_class=PlainTextResponse, include_in_schema=False)
    def read_metrics() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(_PAGE / "index.html")


def _document(app: FastAPI) -> None:
    """Keys, and the schema of problems, which no route returns as its answer."""
    schema = app.openapi()
    parts = schema.setdefault("components", {})
    parts.setdefault("schemas", {})["Problem"] = schemas.Problem.model_json_schema()
    parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"key": []}, {}]
