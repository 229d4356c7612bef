"""How a stream begins."""

from __future__ import annotations

from soba.classifier import Classifier
from soba.serve.store import Store
from soba.serve.stream_state import REMEMBERED, StreamState, checked_adapter


def create_stream(
    store: Store, name: str, classifier: Classifier, remember: int = REMEMBERED
) -> bool:
    """Make a stream that goes on from a classifier, unless there is one: whether it was made."""
    adapter = checked_adapter(classifier.adapter).copy()  # ids too many to remember are forgotten
    state = StreamState.begun(adapter, classifier._note(), remember)

    def blob_at(version: int) -> bytes:
        state.version = version
        return state.to_bytes()

    return store.create(name, encoder=state.encoder["encoder"], blob_at=blob_at, **state.header())
