"""What a server does, HTTP apart: one encoder, a database of streams, and what runs beside them.

Three kinds of threads: those of requests, one that encodes in batches, and one that keeps house:
it takes in what other replicas wrote, draws the curves, and lets go of idle streams.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from soba.classifier import Classifier, load
from soba.encode.encoder import TINY, Encoder
from soba.encode.features import Encoded, Named
from soba.encode.image_files import why_not_read
from soba.encode.pictures import Picture
from soba.encode.prompts import list_templates
from soba.encode.prompts import templates as read_templates
from soba.serve.admission import Admission
from soba.serve.batcher import Batcher
from soba.serve.creation import create_stream
from soba.serve.databases import Database
from soba.serve.durable import DurableStream
from soba.serve.label_sets import LabelSets
from soba.serve.ledger import Ledger
from soba.serve.live_stream import Conflict, LiveStream
from soba.serve.names import ids_of_features
from soba.serve.options import Options
from soba.serve.pool import StreamPool
from soba.serve.probe import DatabaseProbe
from soba.serve.snapshots import reachable
from soba.serve.store import NoStream

_log = logging.getLogger(__name__)
_PATIENCE = 5.0  # seconds
_HOUSE_SECONDS = 0.5  # between two rounds of housekeeping


class Observer(Protocol):
    """Who wants to know how long things take."""

    def encoded(self, images: int, seconds: float) -> None: ...


class LimitExceeded(ValueError):
    """More than this server takes."""


class Service:
    """Streams of one encoder in one database; close it in the end.

    The encoder is at hand, so streams of another one are refused, and none is ever opened.
    """

    def __init__(
        self, encoder: Encoder, database: Database, options: Options, observer: Observer
    ) -> None:
        self.encoder, self.database, self.options = encoder, database, options
        self._observer = observer
        self.ledger = Ledger(database)
        self.pool = StreamPool(self._open, options.max_loaded)
        self.admission = Admission(options.max_waiting)
        self.label_sets = LabelSets(encoder)
        self.batcher = Batcher(_Timed(encoder, observer), options.batch)
        # A decoded image may be hundreds of times the size of its file.
        self._decoding = threading.BoundedSemaphore(os.cpu_count() or 2)
        self._probe = DatabaseProbe(database)
        self.warm = False  # whether an image was encoded
        self._stopping = threading.Event()
        self._house = threading.Thread(target=self._keep_house, name="house", daemon=True)
        self._house.start()

    def warm_up(self) -> None:
        """Encode an image, so that the first request does not wait for what is made once."""
        blank = Image.new("RGB", (64, 64), "white")
        self.batcher.encode([self.encoder.preprocess(blank)])
        self.warm = True

    def close(self) -> None:
        """End the threads and let go of the database."""
        self._stopping.set()
        self._house.join(_PATIENCE)  # it may wait for a database that hangs
        self.batcher.close()
        self.pool.close()
        self.ledger.close()
        self._probe.close()

    # Streams ----------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        classes: Iterable[str],
        *,
        templates: str | Sequence[str] | None = None,
        method: str = "soba+",
        owner: str = "",
    ) -> bool:
        """Make a stream; False where there is one of that name with the same classes."""
        classes = tuple(classes)
        if self.ledger.header(name) is not None:
            self._check_same(name, classes)
            return False
        if self.ledger.owned(owner) >= self.options.max_streams:
            raise LimitExceeded(f"{self.options.max_streams} streams are there already")
        classifier = Classifier(
            self.encoder,
            classes,
            method=method,
            templates=self._prompts(templates, len(classes)),
        )
        is_new = create_stream(self.ledger, name, _with_a_key(classifier))
        if is_new:
            self.ledger.own(name, owner)
        else:  # somebody else was faster
            self._check_same(name, classes)
        return is_new

    def change_classes(
        self, live: LiveStream, classes: Iterable[str], templates: str | Sequence[str] | None
    ) -> None:
        """The same samples under other classes."""
        classes = tuple(classes)
        kept = live.stream.view().templates if templates is None else templates
        live.stream.change_classes(classes, templates=self._prompts(kept, len(classes)))

    def set_guard(
        self, live: LiveStream, pictures: Sequence[Picture], labels: Sequence[str]
    ) -> None:
        """Labelled images that tell when a stream was taught rubbish; all must be readable."""
        part = self.encode(pictures)
        for place, why in part.broken.items():
            raise ValueError(f"{pictures[place].name}: {why}")
        live.stream.set_guard(part.features, labels)

    def roll_back(self, live: LiveStream, version: int | None) -> None:
        """Back to a version; by default to where the guard was last content, or the last version
        before it that can still be had; without a guard, to the last snapshot."""
        if version is not None:
            live.stream.rollback(version)
            return
        view = live.stream.view()
        good, snapshots = view.settings.get("last_good"), live.stream.snapshots()
        target = reachable(good, snapshots)
        if good is None:
            target = next((each for each in snapshots if each < view.version), None)
        if target is None:
            raise Conflict("there is no earlier state to go back to")
        live.stream.rollback(target)

    def import_file(self, live: LiveStream, path: Path) -> None:
        """Go on from a file of soba; its encoder must be this server's."""
        try:
            loaded = load(path, encoder=self.encoder)
        except ValueError as error:
            raise ValueError(str(error).replace(str(path), "the file")) from error
        if not isinstance(loaded, Classifier):
            raise ValueError("the file holds an adapter, and no class names")
        live.stream.import_state(loaded)

    def list(self) -> list[dict[str, Any]]:
        """The streams there are, with their version and the number of their classes."""
        return [
            {
                "name": name,
                "version": header.version,
                "classes": len(json.loads(header.settings)["class_names"]),
            }
            for name in self.ledger.names()
            if (header := self.ledger.header(name)) is not None
        ]

    def remove(self, name: str) -> None:
        """Remove a stream and all that was written about it."""
        if not self.ledger.remove(name):
            raise NoStream(f"there is no stream {name!r}")
        self.pool.drop(name)

    @contextmanager
    def use(self, name: str) -> Iterator[LiveStream]:
        """A stream of the database, in memory while it is used."""
        with self.pool.use(name) as live:
            yield live

    def _open(self, name: str) -> LiveStream:
        try:
            stream = DurableStream(self.database, name, encoder=self.encoder)
        except NoStream as error:
            raise NoStream(f"there is no stream {name!r}") from error
        except ValueError as error:
            header = self.ledger.header(name)
            if header is not None and header.encoder != self.encoder.fingerprint:
                raise Conflict(
                    f"stream {name!r} was learned with another encoder than this server's"
                ) from error
            raise
        return LiveStream(stream, self.ledger, self.options.sync_seconds)

    def _check_same(self, name: str, classes: tuple[str, ...]) -> None:
        with self.use(name):  # it must be of this encoder
            header = self.ledger.header(name)
        if header is None or json.loads(header.settings)["class_names"] != list(classes):
            raise Conflict(f"there is a stream {name!r} with other classes")

    def _prompts(
        self, templates: str | Sequence[str] | None, classes: int
    ) -> tuple[str, ...] | None:
        """Prompts that are sentences or one of our names: never a file of this machine."""
        if isinstance(templates, str):
            if "{" not in templates and templates not in list_templates():
                known = ", ".join(list_templates())
                raise ValueError(f"no templates {templates!r}; there are: {known}")
            templates = read_templates(templates)
        prompts = None if templates is None else tuple(templates)
        default = read_templates("icon" if self.encoder.name == TINY else "single")
        count = len(default if prompts is None else prompts)
        if classes * count > self.options.max_prompts:
            raise LimitExceeded(
                f"{classes} classes with {count} templates are over the limit of "
                f"{self.options.max_prompts} prompts"
            )
        return prompts

    # Images -----------------------------------------------------------------------------------

    def encode(self, pictures: Sequence[Picture]) -> Encoded:
        """Features of the images of one request, encoded together with those of others."""
        pixels: dict[int, np.ndarray] = {}
        broken: dict[int, str] = {}
        for place, picture in enumerate(pictures):
            try:
                with self._decoding:
                    pixels[place] = self.encoder.preprocess(picture.open())
            except Exception as error:  # Pillow's decoders raise nearly every kind there is
                broken[place] = why_not_read(error)
        if not pixels:
            features = np.empty((0, self.encoder.width), np.float32)
        else:
            features = self.batcher.encode(list(pixels.values()))
        indices = np.array(list(pixels), np.int64)
        return Encoded(0, len(pictures), indices, features, broken, tuple(pictures))

    def features(self, rows: np.ndarray) -> Encoded:
        """Features that came ready, as if they had been encoded here."""
        if rows.ndim != 2 or rows.shape[1] != self.encoder.width or rows.dtype.kind != "f":
            raise ValueError(
                f"features are floats of shape (n, {self.encoder.width}), not "
                f"{rows.dtype} of {rows.shape}"
            )
        rows = np.asarray(rows, np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise ValueError("features must be finite, and none of them zero")
        rows = rows / lengths
        ids = ids_of_features(rows).tolist()
        images = tuple(Named(f"feature {place}", id_) for place, id_ in enumerate(ids))
        return Encoded(0, len(rows), np.arange(len(rows)), rows, {}, images)

    # House ------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        while not self._stopping.wait(_HOUSE_SECONDS):
            now = time.monotonic()
            for live in self.pool.loaded():
                if self._stopping.is_set():
                    return
                self._attempt(self._look_after, live, now)
            self._attempt(self.pool.unload, now - self.options.idle_seconds)

    def _look_after(self, live: LiveStream, now: float) -> None:
        try:
            if now - live.synced >= self.options.sync_seconds:
                live.sync()
            live.draw()
        except NoStream:  # removed by another replica
            self.pool.drop(live.name)

    def _attempt(self, work: Callable[..., None], *arguments: Any) -> None:
        """What goes wrong beside the requests ends no thread; the next round tries again."""
        try:
            work(*arguments)
        except Exception:
            _log.exception("housekeeping")

    def database_answers(self) -> bool:
        """Whether the database does; nobody waits long for the answer."""
        return self._probe.answers()


def _with_a_key(classifier: Classifier) -> Classifier:
    """The same, before it has learned anything, with a uniform sample whose key nobody knows:
    strangers may choose ids, and shall not choose what is drawn."""
    adapter = classifier.adapter
    if "sample_key" not in adapter.params:
        return classifier
    settings = adapter.params | {"sample_key": secrets.randbits(62)}
    keyed = type(adapter)(adapter._given_text, **settings)
    return Classifier._of(classifier._source, keyed, classifier.names, classifier.templates)


class _Timed:
    """The encoder, with whoever wants to know how long it takes."""

    def __init__(self, encoder: Encoder, observer: Observer) -> None:
        self._encoder, self._observer = encoder, observer

    def encode_pixels(self, pixels: np.ndarray) -> np.ndarray:
        began = time.perf_counter()
        features = self._encoder.encode_pixels(pixels)
        self._observer.encoded(len(pixels), time.perf_counter() - began)
        return features
