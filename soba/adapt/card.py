"""What is known of a method, declared beside it and read by all who list, run or show methods."""

from __future__ import annotations

import csv
import re
from collections.abc import Set
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

FAMILIES = ("stream", "episodic", "few-shot", "tuner", "transductive")

# What a method may need -> how people are told, in this order.
NEEDS = {
    "features": "features",
    "views": "views",
    "generated views": "generated views",
    "prompts": "prompts",
    "labels": "few-shot labels",
    "gradients": "torch",
}
NOT_STATED = "not stated"

ONE_VIEW, CROPS, AUGMIX = "one view", "64 views", "64 views, AugMix"

_NAME = re.compile(r"[a-z0-9][a-z0-9+._-]*")  # it stands in options, file names and pages
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


class PaperViews(NamedTuple):
    """The views behind a paper's numbers, in words, by the kind of data set."""

    imagenet: str
    variants: str  # of ImageNet: A, R, Sketch, V2
    elsewhere: str


@dataclass(frozen=True)
class PaperSettings:
    """What a method's paper or official code sets besides the defaults of the class.

    Parameters
    ----------
    schedule
        "tenths" where statistics refresh at every tenth of the stream.
    constants
        A CSV file: the hyper-parameters that the official code has for each data set.
    search
        A CSV file: where the official code's search on each data set begins and ends.
    views
        Behind the printed numbers, where published code tells.
    one_prompt
        Whether the printed numbers are of one prompt on every data set.
    printed_name, printed_title
        The method's name and title in the paper's tables, where they are other ones.
    """

    schedule: str | None = None
    constants: Path | None = None
    search: Path | None = None
    views: PaperViews | None = None
    one_prompt: bool = False
    printed_name: str | None = None
    printed_title: str = ""

    def constants_for(self, dataset: str) -> dict[str, float]:
        """Hyper-parameters for one data set; none where the official code has none."""
        return {} if self.constants is None else dict(_rows(self.constants).get(dataset, {}))

    def search_for(self, dataset: str) -> dict[str, float]:
        """Ranges and initial values of the search on one data set."""
        return {} if self.search is None else dict(_rows(self.search).get(dataset, {}))


@dataclass(frozen=True)
class Card:
    """A method in brief; every method class has one as its attribute `card`.

    Parameters
    ----------
    name
        How it is asked for, and what its state files say: small letters, digits, `+`, `-`.
    title
        What people call it, in tables and legends; by default its name.
    colour
        Its one colour in every picture, as #rrggbb; by default one that follows from the name.
    family
        "stream": learns from the images as they come. "episodic": each image by itself.
        "few-shot": fitted on labelled samples, then only scores. "tuner": tunes prompts through
        the text tower, so it is built from (encoder, class names, template) in place of text
        features. "transductive": sees a whole set at once, through `transduce`, and nothing else.
    needs
        Words of `NEEDS`.
    min_views
        Above 1 it takes (n, V, d) features only.
    episodic
        Whether the order of a stream is nothing to it; a tuner has to say so.
    provenance
        Where the algorithm comes from: "official algorithm", "ours", or other words.
    paper
        What its paper sets besides.

    Examples
    --------
    >>> Card("my-method", title="My method", colour="#336699").needs_in_words
    'features'
    """

    name: str
    title: str = ""
    colour: str = ""
    family: str = "stream"
    needs: Set[str] = frozenset({"features"})
    min_views: int = 1
    episodic: bool = False
    provenance: str = NOT_STATED
    paper: PaperSettings = field(default_factory=PaperSettings)

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "title", self.title or self.name)
        object.__setattr__(self, "needs", frozenset(self.needs))
        orderless = self.family in ("episodic", "transductive")
        object.__setattr__(self, "episodic", self.episodic or orderless)

    def _check(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} cannot name a method: small letters, digits, + . _ -")
        if self.colour and not _COLOUR.fullmatch(self.colour):
            raise ValueError(f"{self.name}: colour {self.colour!r} is not of the form #rrggbb")
        if self.family not in FAMILIES:
            raise ValueError(
                f"{self.name}: no family {self.family!r}; there are: {', '.join(FAMILIES)}"
            )
        if unknown := sorted(set(self.needs) - NEEDS.keys()):
            raise ValueError(
                f"{self.name}: cannot need {', '.join(unknown)}; there are: {', '.join(NEEDS)}"
            )
        implied = {"few-shot": "labels", "tuner": "gradients"}.get(self.family)
        if implied is not None and implied not in self.needs:
            raise ValueError(f"{self.name}: a {self.family} method needs {implied}")
        if (self.min_views > 1) != ("views" in self.needs):
            raise ValueError(f"{self.name}: needs views if, and only if, min_views is above 1")

    @property
    def few_shot(self) -> bool:
        """Whether it is fitted on labelled samples."""
        return "labels" in self.needs

    @property
    def per_prompt(self) -> bool:
        """Whether it is built from (P, C, d), a text matrix per prompt."""
        return "prompts" in self.needs

    @property
    def takes_generated_views(self) -> bool:
        """Whether some of its views, the last ones, are a diffusion model's."""
        return "generated views" in self.needs

    @property
    def tunes_prompts(self) -> bool:
        """Whether it is built from (encoder, class names, template)."""
        return self.family == "tuner"

    @property
    def needs_in_words(self) -> str:
        """What it needs, for people."""
        words = [words for need, words in NEEDS.items() if need in self.needs]
        if self.tunes_prompts:
            words[-1] = "encoder with text gradients"
        return ", ".join(words)


@cache
def _rows(path: Path) -> dict[str, dict[str, float]]:
    """Data set -> name -> value."""
    with path.open() as file:
        return {
            row.pop("dataset"): {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        }
