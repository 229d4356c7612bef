"""What can be set when a server starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_STORE = "sqlite:///soba-streams.db"


@dataclass(frozen=True)
class Options:
    """All limits are per server process, but for streams, which are counted in the database."""

    host: str = "127.0.0.1"
    port: int = 8000
    allow_hosts: tuple[str, ...] = ()  # names besides the address that it listens on
    keys_file: Path | None = None
    accept_features: bool = False
    min_confidence: float = 0.5  # an answer below is marked as unsure
    batch: int = 64  # images that are encoded at once
    max_waiting: int = 512  # images that wait or are worked on; more are refused, with 429
    max_images: int = 256  # in one request
    max_body: int = 32 << 20  # bytes
    max_import: int = 1 << 30  # bytes
    max_pixels: int = 50_000_000  # of one image
    max_prompts: int = 100_000  # classes times templates
    max_streams: int = 100  # that one key may create
    max_loaded: int = 32  # streams in memory
    idle_seconds: float = 600.0  # after which a stream leaves memory
    sync_seconds: float = 1.0  # after so many, what other replicas wrote is taken in
    drain_seconds: float = 3.0  # between "not ready" and the end of listening
