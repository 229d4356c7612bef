"""A client of `soba serve`, whose retries are safe.

Samples are known by content or id: one that is sent twice is learned once, so `classify` is sent
again when its answer is lost. So is whatever says how things shall be. What goes back or forgets
(rollback, reset, import) is sent again only where nothing can have been done.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote

import httpx

from soba._files import replacing
from soba._uploads import Options, feedback, guard_upload, parsed, uploads
from soba.answers import ServedAnswer

_LONGEST_WAIT = 60.0  # seconds; a server that asks for more is an error
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_LIMITS = httpx.Limits(keepalive_expiry=2.0)  # before the server hangs up, maybe on a request


class ServiceError(Exception):
    """What the server says is wrong; `status` is None where no answer came."""

    def __init__(self, detail: str, status: int | None = None) -> None:
        super().__init__(detail if status is None else f"{status}: {detail}")
        self.detail, self.status = detail, status


class Client(AbstractContextManager["Client"]):
    """A server; a request that fails is sent again up to `retries` times, after 0.1 to 10 s."""

    def __init__(self, url: str, key: str = "", *, timeout: float = 60, retries: int = 8) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, limits=_LIMITS)
        self._retries, self.close = retries, self._http.close

    def create(self, name: str, classes: Iterable[str], **options: Any) -> RemoteStream:
        """A stream of these classes, old or new; options: `templates`, `method`."""
        self.call("POST", "/v1/streams", json={"name": name, "classes": list(classes), **options})
        return RemoteStream(name, self)

    def stream(self, name: str) -> RemoteStream:
        return RemoteStream(name, self)

    def streams(self) -> list[RemoteStream]:
        return [self.stream(each["name"]) for each in self.call("GET", "/v1/streams")["streams"]]

    def call(self, method: str, path: str, *, again: bool = True, **content: Any) -> Any:
        """The JSON or the bytes of the answer; `again`: whether it may be done twice."""
        for attempt in range(self._retries + 1):
            wait = min(10.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)
            try:
                response = self._http.request(method, path, **content)
            except httpx.TransportError as lost:
                error = ServiceError(f"{self._http.base_url}: {lost or type(lost).__name__}")
                may_pass = again or isinstance(lost, _UNSENT)
            else:
                status, asked = response.status_code, response.headers.get("Retry-After", "0")
                body = parsed(response.headers.get("Content-Type", ""), response.content)
                # What the first attempt deleted is not there for the second.
                gone = method == "DELETE" and attempt > 0 and status == 404
                # Where all images are broken, the problem has the answers that say so.
                if response.is_success or gone or "answers" in body:
                    return body or response.content
                error = ServiceError(body.get("detail") or response.text[:200], status)
                # A database that went away may have committed before; so may a proxy's server.
                may_pass = status == 429 or (again and status in (502, 503, 504))
                wait = max(wait, float(asked) * random.uniform(1.0, 1.2) if asked.isdigit() else 0)
            if not may_pass or attempt == self._retries or wait > _LONGEST_WAIT:
                raise error
            time.sleep(wait)

    def __exit__(self, *error: object) -> None:
        self.close()


def _verb(method: str, verb: str, **options: Any) -> Callable[[RemoteStream], Any]:
    return lambda stream: stream._call(method, verb, **options)


@dataclass(frozen=True)
class RemoteStream:
    """A stream of a server. What its verbs return is in docs/serve.md."""

    name: str
    client: Client = field(repr=False)

    def classify(
        self, images: Any = None, *, features: Any = None, **options: Unpack[Options]
    ) -> Iterator[ServedAnswer]:
        """Answer whatever `soba.Classifier` takes, or features (n, d), as you iterate.

        Options: `ids`, what you call the samples, one each; `learn=False`, to look only; `top=3`;
        `min_confidence=0.5`; `batch=16`. A broken image is an answer with its `error`.
        """
        for upload in uploads(images, features, **options):
            said = self._call("POST", "/classify", **upload.request) if upload.request else {}
            yield from upload.answers(said)

    state = _verb("GET", "")
    timeline = _verb("GET", "/timeline")
    freeze = _verb("POST", "/freeze")
    unfreeze = _verb("POST", "/unfreeze")
    reset = _verb("POST", "/reset", again=False)
    remove_guard = _verb("DELETE", "/guard")
    delete = _verb("DELETE", "")

    def queue(self, label: str) -> Any:
        return self._call("GET", f"/queue/{quote(label, safe='').replace('.', '%2E')}")

    def history(self, limit: int = 100) -> Any:
        return self._call("GET", "/history", params={"limit": limit})["changes"]

    def set_classes(self, classes: Iterable[str], **options: Any) -> Any:
        return self._call("PUT", "/classes", json={"classes": list(classes), **options})

    def set_guard(self, images: Mapping[str, Any]) -> Any:
        """Labelled images by class: `{"cat": "guard/cats/", "dog": ["1.jpg", "2.jpg"]}`."""
        return self._call("PUT", "/guard", **guard_upload(images))

    def rollback(self, version: int | None = None) -> Any:
        """To a version, or to where the guard passed last."""
        where = {} if version is None else {"version": version}
        return self._call("POST", "/rollback", again=False, json=where)

    def feedback(self, answer: ServedAnswer | str, label: str) -> Any:
        """Say what an answer, or the sample of an id, should have been; nothing learns from it."""
        return self._call("POST", "/feedback", json=feedback(answer) | {"label": label})

    def export(self, path: str | Path) -> None:
        """Into a file for `soba.load`."""
        with replacing(path) as temporary:
            temporary.write_bytes(self._call("GET", "/export"))

    def import_state(self, path: str | Path) -> Any:
        content, kind = Path(path).read_bytes(), {"Content-Type": "application/octet-stream"}
        return self._call("POST", "/import", again=False, content=content, headers=kind)

    def _call(self, method: str, verb: str, **content: Any) -> Any:
        return self.client.call(method, f"/v1/streams/{quote(self.name, safe='')}{verb}", **content)
