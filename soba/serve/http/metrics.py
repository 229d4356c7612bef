"""Prometheus metrics. What is a matter of now is read when it is asked for, not kept beside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from soba.serve.live_stream import Reply
    from soba.serve.service import Service

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """All metrics of one server; their names begin with soba_."""

    def __init__(self) -> None:
        # When a label was first seen is what nobody asks.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()

        def seconds(name: str, help: str, labels: Iterable[str] = ()) -> Histogram:
            return Histogram(name, help, labels, registry=registry, buckets=_SECONDS)

        def counter(name: str, help: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(name, help, labels, registry=registry)

        labels = ("method", "route", "status")
        self._requests = counter("soba_requests", "Requests", labels)
        self._request_seconds = seconds("soba_request_seconds", "Of requests", ("route",))
        self._batch = Histogram(
            "soba_batch_size", "Images encoded at once", registry=registry, buckets=_SIZES
        )
        self._encode = seconds("soba_encode_seconds", "Of the encoder, a batch")
        self._commit = seconds("soba_commit_seconds", "Of the database, a commit")
        self._refresh = seconds("soba_refresh_seconds", "Of learning that refreshed statistics")
        self._learned = counter("soba_learned", "Samples learned from")
        self._changed = counter("soba_changed", "Answers that are not zero-shot's")
        self._unsure = counter("soba_unsure", "Answers below the confidence asked for")

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def encoded(self, images: int, seconds: float) -> None:
        self._batch.observe(images)
        self._encode.observe(seconds)

    def answered(self, reply: Reply, unsure: int) -> None:
        answers = [answer for answer in reply.answers if not answer.error]
        self._learned.inc(reply.learned)
        self._changed.inc(sum(answer.label != answer.zero_shot for answer in answers))
        self._unsure.inc(unsure)
        if reply.commit_seconds:
            self._commit.observe(reply.commit_seconds)
        if reply.refresh_seconds:
            self._refresh.observe(reply.refresh_seconds)

    def watch(self, service: Service) -> None:
        """Read the state of a service whenever somebody asks for the metrics."""
        self._registry.register(_Watch(service))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Watch(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily("soba_images_waiting", "Images that wait for the encoder")
        waiting.add_metric([], self._service.batcher.waiting)
        loaded = GaugeMetricFamily("soba_streams_loaded", "Streams in memory")
        streams = self._service.pool.loaded()
        loaded.add_metric([], len(streams))
        frozen = GaugeMetricFamily("soba_frozen", "1: learns nothing", labels=("stream", "by"))
        stale = GaugeMetricFamily("soba_stale", "1: the database is away", labels=("stream",))
        guard = GaugeMetricFamily(
            "soba_guard_accuracy", "Share of the guard's images", labels=("stream", "by")
        )
        for live in streams:
            settings = live.stream.view().settings
            by = settings.get("frozen_by") or "operator"
            frozen.add_metric([live.name, by], float(bool(settings.get("frozen"))))
            stale.add_metric([live.name], float(live.stale))
            score = settings.get("guard_score")
            if score and score["images"]:
                for who in ("adapted", "zero_shot"):
                    guard.add_metric([live.name, who], score[who] / score["images"])
        return [waiting, loaded, frozen, stale, guard]
