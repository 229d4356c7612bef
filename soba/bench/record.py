"""Records: what a run has measured, checked, and as files of their own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soba._files import parse_json, replacing
from soba.adapt.card import NOT_STATED
from soba.bench.tuning import PAPER

Fits = Callable[[Any], bool]

_REMOVE = "; remove it to run its cell again"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One stream of one method: what it scored, and all that decided the score.

    A value that cannot be one raises a ValueError. Accuracies and the calibration error are in
    percent.

    Attributes
    ----------
    encoder
        Its fingerprint; in older records that of encoder and prompts together.
    templates
        The fingerprint of the prompts.
    order
        The kind of order; `seed` says which of them.
    transductive
        The method saw the whole set before it answered, in place of a stream.
    answered, accuracy_answered
        Share of the samples above the least confidence that was asked for, and accuracy on them.
    expected_accuracy
        "zero_shot" and "adapted", as the method estimates them without labels at its end.
    seconds
        Of adapting; encoding took `encode_seconds`.
    tuned_on
        What the hyper-parameters were searched on.
    unlike_the_paper
        Name -> [ours, the paper's] of the hyper-parameters that are other ones.
    used
        What a method did without, or had besides, where it says so.
    accuracy_per_domain
        Of a stream that joins several data sets; `joined` are their names.
    agreement
        Of answers with those of the nearest images, where a search without labels asked for it.
    identity
        A digest of all that decides a cell but the seed.
    model
        What people call the encoder.
    expected, left_out
        Images of the literature's test split, and how many of them are not in this one.
    listing
        "tda" where images were left out as the official TDA does.
    """

    dataset: str
    encoder: str | None = None
    templates: str | None = None
    method: str
    seed: int
    order: str = "shuffled"
    transductive: bool = False
    samples: int | None = None
    views: int = 1
    accuracy: float
    calibration_error: float
    answered: float = 100.0
    accuracy_answered: float | None = None
    accuracy_at_coverage: list[float] = field(default_factory=list)
    accuracy_over_stream: list[float] = field(default_factory=list)
    expected_accuracy: dict[str, float] | None = None
    seconds: float
    hyper_parameters: dict[str, Any] = field(default_factory=dict)
    tuned_on: str = PAPER
    unlike_the_paper: dict[str, list[Any]] = field(default_factory=dict)
    used: str | None = None
    provenance: str = NOT_STATED
    versions: dict[str, str] = field(default_factory=dict)
    cpus: int | None = None
    accuracy_per_domain: dict[str, float] | None = None
    agreement: float | None = None
    identity: str | None = None
    benchmark: str = ""
    model: str = ""
    encode_seconds: float | None = None
    view_policy: str | None = None
    prompts: list[str] | str | None = None
    joined: list[str] | None = None
    shots: int | None = None
    expected: int | None = None
    left_out: int = 0
    listing: str | None = None
    device: str | None = None
    precision: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        for name, fits in _FITS.items():
            value = getattr(self, name)
            if not fits(value) and not (value is None and name in _OPTIONAL):
                raise ValueError(f"not a record: {name} is {_shown(value)}")

    def to_json(self) -> dict[str, Any]:
        """All fields, as a JSON object has them."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_json(cls, content: Any) -> Record:
        """What `to_json` gave; what is missing or null has its default.

        Examples
        --------
        >>> scores = {"accuracy": 60.0, "calibration_error": 5.0, "seconds": 0.5}
        >>> record = Record.from_json({"dataset": "dtd", "method": "soba", "seed": 0} | scores)
        >>> record.accuracy, record.order, Record.from_json(record.to_json()) == record
        (60.0, 'shuffled', True)
        """
        if not isinstance(content, dict):
            raise ValueError("not a record: not a JSON object")
        given = {key: value for key, value in content.items() if value is not None}
        if not given.get("model"):
            given["model"] = str(given.get("encoder") or "")
        return cls(**_REQUIRED | {key: given[key] for key in _FIELDS if key in given})


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    """Neither NaN nor infinite."""
    given = isinstance(value, int | float) and not isinstance(value, bool)
    return given and abs(value) <= sys.float_info.max


def _is_duration(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_percentage(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 100


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _is_estimate(value: Any) -> bool:
    named = isinstance(value, dict) and value.keys() == {"zero_shot", "adapted"}
    return named and all(map(_is_percentage, value.values()))


def _list_of(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _object_of(fits: Fits) -> Fits:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


_FITS: dict[str, Fits] = {  # field -> whether a value can be its
    "dataset": _is_text,
    "encoder": _is_text,
    "templates": _is_text,
    "method": _is_text,
    "seed": _is_count,
    "order": _is_text,
    "transductive": _is_flag,
    "samples": _is_count,
    "views": _is_count,
    "accuracy": _is_percentage,
    "calibration_error": _is_percentage,
    "answered": _is_percentage,
    "accuracy_answered": _is_percentage,
    "accuracy_at_coverage": _list_of(_is_number),
    "accuracy_over_stream": _list_of(_is_number),
    "expected_accuracy": _is_estimate,
    "seconds": _is_duration,
    "hyper_parameters": _object_of(lambda value: True),
    "tuned_on": _is_text,
    "unlike_the_paper": _object_of(_is_pair),
    "used": _is_text,
    "provenance": _is_text,
    "versions": _object_of(_is_text),
    "cpus": _is_count,
    "accuracy_per_domain": _object_of(_is_percentage),
    "agreement": _is_number,
    "identity": _is_text,
    "benchmark": _is_text,
    "model": _is_text,
    "encode_seconds": _is_duration,
    "view_policy": _is_text,
    "prompts": lambda value: _is_text(value) or _list_of(_is_text)(value),
    "joined": _list_of(_is_text),
    "shots": _is_count,
    "expected": _is_count,
    "left_out": _is_count,
    "listing": _is_text,
    "device": _is_text,
    "precision": _is_text,
    "dtype": _is_text,
}
_OPTIONAL = {entry.name for entry in dataclasses.fields(Record) if entry.default is None}
_FIELDS = tuple(entry.name for entry in dataclasses.fields(Record))
_REQUIRED: dict[str, Any] = dict.fromkeys(
    ("dataset", "method", "seed", "accuracy", "calibration_error", "seconds")
)


def digest(parts: dict[str, Any]) -> str:
    """A short name for all that decides a content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def plain_name(name: str) -> str:
    """As a file name on any system."""
    return re.sub(r"[^\w.+-]", "_", name)


def read_record(path: Path) -> Record:
    """What `write_record` wrote; a file that holds anything else is named."""
    content = read_object(path)
    try:
        return Record.from_json(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}{_REMOVE}") from error


def write_record(path: Path, record: Record) -> None:
    """Whole, or not at all."""
    write_object(path, record.to_json())


def read_object(path: Path) -> dict[str, Any]:
    """What `write_object` wrote; a file that holds no JSON object is named."""
    try:
        content = parse_json(path.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not a record{_REMOVE}")
    return content


def write_object(path: Path, content: dict[str, Any]) -> None:
    """Whole, or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")
