"""What goes over the wire, as OpenAPI shows it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from soba.serve.shares import wilson

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_NO_NUL = r"^[^\x00]*$"  # PostgreSQL has no place for it
AnswersBy = Literal["adapted", "zero-shot"]
ClassName = Annotated[str, Field(min_length=1, max_length=200, pattern=_NO_NUL)]
Id = Annotated[str, Field(min_length=1, max_length=200, pattern=_NO_NUL)]


class Strict(BaseModel):
    """A request: what it says and nothing besides."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""


class Share(BaseModel):
    """Right answers, with the 95% interval of their share."""

    right: int
    accuracy: float | None
    low: float
    high: float

    @classmethod
    def of(cls, right: int, images: int) -> Share:
        low, high = wilson(right, images)
        return cls(right=right, accuracy=right / images if images else None, low=low, high=high)


class FeedbackCounts(BaseModel):
    """What people said of the answers; nothing is learned from it."""

    count: int
    adapted: Share
    zero_shot: Share


class GuardScore(BaseModel):
    """How the guard's images were answered when they were last looked at."""

    images: int
    version: int
    adapted: Share
    zero_shot: Share
    p_value: float = Field(description="That chance makes adapted so much worse than zero-shot.")
    failed: bool


class Expected(BaseModel):
    """Shares that are expected to be right, estimated without labels."""

    zero_shot: float
    adapted: float


class ClassEvidence(BaseModel):
    """How many samples speak for a class."""

    name: str = Field(alias="class")
    queued: float = Field(
        description="In its queue; of SOBA+, in its sample, shared out by probability."
    )
    capacity: int | None

    @classmethod
    def of(cls, name: str, queued: float, capacity: int | None) -> ClassEvidence:
        return cls.model_validate({"class": name, "queued": queued, "capacity": capacity})


class StreamInfo(BaseModel):
    """A stream as it is now."""

    name: str
    classes: list[str]
    templates: list[str]
    method: str
    encoder: str
    version: int
    n_seen: int
    frozen: bool
    frozen_by: Literal["operator", "guard"] | None
    answers_by: AnswersBy
    stale: bool = Field(description="The database was away when it was last asked.")
    snapshots: list[int]
    last_good_version: int | None
    evidence: list[ClassEvidence]
    agreement: float | None
    expected_accuracy: Expected | None
    feedback: FeedbackCounts
    guard: GuardScore | None


class StreamLine(BaseModel):
    """A stream in the list of all."""

    name: str
    version: int
    classes: int


class StreamList(BaseModel):
    streams: list[StreamLine]


class NewStream(Strict):
    """A stream to make."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "pets", "classes": ["cat", "dog", "fox"]}]}
    )
    name: Annotated[str, Field(pattern=NAME)]
    classes: Annotated[list[ClassName], Field(min_length=1)]
    templates: list[str] | str | None = Field(
        None, description="Sentences with {}, or a name: single, seven, eighty, icon.",
        examples=["single", ["a photo of a {}."]],
    )  # fmt: skip
    method: str = Field("soba+", examples=["soba+", "tda"])


class NewClasses(Strict):
    """Other classes for the samples of a stream."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"classes": ["cat", "dog", "fox", "owl"]}]}
    )
    classes: Annotated[list[ClassName], Field(min_length=1)]
    templates: list[str] | str | None = None


class RollbackTo(Strict):
    """A version; without one, where the guard was last content, else the last snapshot."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"version": 120}, {}]})
    version: int | None = Field(None, ge=0)


class FeedbackGiven(Strict):
    """The true label of an image, and what was answered where the server may have forgotten it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "shot-17", "label": "cat"}]})
    id: Id
    label: ClassName
    answered: ClassName | None = None
    zero_shot: ClassName | None = None


class Candidate(BaseModel):
    label: str
    probability: float


class Answered(BaseModel):
    """The answer to one image."""

    id: str
    sample: str | None = Field(description="As the queue of a class lists it.")
    image: str
    label: str | None
    probability: float | None
    top: list[Candidate]
    zero_shot: Candidate | None
    changed: bool
    unsure: bool
    error: str | None


class Classified(BaseModel):
    """The answers to a request, all of one version."""

    stream: str
    version: int
    answers_by: AnswersBy
    frozen: bool
    stale: bool
    learned: int
    answers: list[Answered]


class Queued(BaseModel):
    sample: str
    entropy: float | None = Field(
        default=None, description="Under CLIP, in nats; of samples in a queue."
    )
    probability: float | None = Field(
        default=None, description="Of the class; of samples of SOBA+."
    )


class ClassQueue(BaseModel):
    """The samples that speak for a class: its queue, the surest first, or what it explains best."""

    name: str = Field(alias="class")
    capacity: int | None
    samples: list[Queued]


class ChangeLine(BaseModel):
    version: int
    kind: str
    samples: int
    at: float


class History(BaseModel):
    changes: list[ChangeLine]


class Timeline(BaseModel):
    """Points of the curves, oldest first."""

    points: list[dict[str, Any]]


class Examples(BaseModel):
    """Icons to try the server with, and what they show."""

    classes: list[str]
    images: int
    labels: list[str]


class ServerInfo(BaseModel):
    version: str
    encoder: str
    examples: bool
    accept_features: bool
    limits: dict[str, int]
