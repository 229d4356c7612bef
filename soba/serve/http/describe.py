"""Streams and answers in the words of the API."""

from __future__ import annotations

from typing import Any

import numpy as np

from soba.adapt.soba_plus import SOBAPlus
from soba.serve.http.schemas import (
    Answered,
    Candidate,
    ClassEvidence,
    Classified,
    ClassQueue,
    Expected,
    FeedbackCounts,
    GuardScore,
    Queued,
    Share,
    StreamInfo,
)
from soba.serve.ledger import Feedback
from soba.serve.live_stream import LiveStream, Reply, expected
from soba.serve.snapshots import reachable
from soba.serve.stream_state import StreamState

_EXAMPLES = 16  # samples of a class that are listed, where it has no queue


def sample_name(number: int) -> str:
    """A sample's id as the API writes it.

    Examples
    --------
    >>> sample_name(255)
    '00000000000000ff'
    """
    return f"{number:016x}"


def describe_stream(live: LiveStream, encoder: str) -> StreamInfo:
    """All there is to say of a stream now; what the database would say is what it last said."""
    view = live.stream.view()
    settings, expectation = view.settings, expected(view)
    feedback, snapshots = live.feedback(), live.snapshots()
    return StreamInfo(
        name=live.name,
        classes=list(view.names),
        templates=list(view.templates),
        method=view.method,
        encoder=encoder,
        version=view.version,
        n_seen=view.n_seen,
        frozen=view.frozen,
        frozen_by=settings.get("frozen_by") if view.frozen else None,
        answers_by=view.answers_by,
        stale=live.stale,
        snapshots=snapshots,
        last_good_version=reachable(settings.get("last_good"), snapshots),
        evidence=[
            ClassEvidence.of(name, round(float(queued), 1), view.room)
            for name, queued in zip(view.names, view.queued, strict=True)
        ],
        agreement=live.agreement,
        expected_accuracy=Expected(**expectation) if expectation else None,
        feedback=describe_feedback(feedback),
        guard=describe_guard(settings.get("guard_score")),
    )


def describe_feedback(feedback: Feedback) -> FeedbackCounts:
    images, adapted, zero_shot = feedback
    return FeedbackCounts(
        count=images, adapted=Share.of(adapted, images), zero_shot=Share.of(zero_shot, images)
    )


def describe_guard(score: dict[str, Any] | None) -> GuardScore | None:
    if not score:
        return None
    images = score["images"]
    return GuardScore(
        images=images,
        version=score["version"],
        adapted=Share.of(score["adapted"], images),
        zero_shot=Share.of(score["zero_shot"], images),
        p_value=score["p_value"],
        failed=score["failed"],
    )


def describe_broken(id_: str, image: str, why: str) -> Answered:
    """The answer to an image that could not be read."""
    return Answered(
        id=id_,
        sample=None,
        image=image,
        label=None,
        probability=None,
        top=[],
        zero_shot=None,
        changed=False,
        unsure=False,
        error=why,
    )


def describe_reply(stream: str, reply: Reply, ids: list[str], min_confidence: float) -> Classified:
    """The answers to one request; `ids` are what they are called, one an image."""
    answers = []
    for place, (id_, answer) in enumerate(zip(ids, reply.answers, strict=True)):
        if answer.error:
            answers.append(describe_broken(id_, answer.image, answer.error))
            continue
        top = [Candidate(label=label, probability=chance) for label, chance in answer.top]
        plain = Candidate(label=answer.zero_shot, probability=answer.zero_shot_probability)
        answers.append(
            Answered(
                id=id_,
                sample=sample_name(reply.samples[place]),
                image=answer.image,
                label=answer.label,
                probability=answer.probability,
                top=top,
                zero_shot=plain,
                changed=answer.label != answer.zero_shot,
                unsure=answer.probability < min_confidence,
                error=None,
            )
        )
    return Classified(
        stream=stream,
        version=reply.view.version,
        answers_by=reply.view.answers_by,
        frozen=reply.view.frozen,
        stale=reply.stale,
        learned=reply.learned,
        answers=answers,
    )


def describe_queue(state: StreamState, name: str) -> ClassQueue:
    """The samples that speak for a class: what the queues hold, or what it explains best."""
    label = state.names.index(name)
    if isinstance(state.adapter, SOBAPlus):
        best = state.adapter.examples(_EXAMPLES)[label]
        likely = [Queued(sample=sample_name(id_), probability=p) for id_, p in best.items()]
        return ClassQueue.model_validate({"class": name, "capacity": None, "samples": likely})
    rows: list[tuple[float, int]] = []
    rooms = []
    for queue in state.adapter._queues.values():
        members = queue.members()
        inside = np.flatnonzero(members.labels == label)
        rows += zip(members.entropies[inside].tolist(), members.ids[inside].tolist(), strict=True)
        rooms.append(queue.capacity)
    samples = [Queued(sample=sample_name(id_), entropy=max(0.0, e)) for e, id_ in sorted(rows)]
    capacity = None if None in rooms else sum(room or 0 for room in rooms)
    return ClassQueue.model_validate({"class": name, "capacity": capacity, "samples": samples})
