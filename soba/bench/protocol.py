"""What a record ran with, in words, and what the paper ran with: data sets, views, prompts, images.

By the published code of TDA, which the paper builds on, TDA, NCM and SOBA see 64 AugMix views on
ImageNet's variants and one view elsewhere. The rows of MTA and TPT come from their own papers: 64
views on every set, AugMix for TPT on the ten fine-grained ones, and one prompt for MTA.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from soba._files import parse_json
from soba.adapt.card import AUGMIX, ONE_VIEW, PaperSettings
from soba.bench.record import Record
from soba.datasets import GROUPS, NAMES
from soba.encode.prompts import templates
from soba.registry import card, list_methods

_EACH = "of each domain"  # what records of joined streams say: prompts differ, as they should
_ICONS = ("an icon of a {}.",)
_VARIANTS = tuple(name for name in GROUPS["ood"] if name != "imagenet")


def plain(value: Any) -> str:
    """Any value of a record as a key or a word."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def joined(record: Record) -> tuple[str, ...]:
    """The data sets of a joined stream; none for a stream of one set."""
    return tuple(sorted(record.joined or record.accuracy_per_domain or ()))


def views(record: Record) -> str:
    """The view policy in words."""
    return _policy(plain(record.view_policy or ""), int(record.views))


@cache
def _policy(said: str, count: int) -> str:
    """
    >>> _policy('{"count": 64, "augmix": {"chains": 3}}', 64), _policy("", 5), _policy("", 1)
    ('64 views, AugMix', '5 views', 'one view')
    """
    if said.startswith("{"):
        try:
            policy = parse_json(said)
            mixed = ", AugMix" if policy["augmix"] else ""
            return ONE_VIEW if policy["count"] == 1 else f"{policy['count']} views{mixed}"
        except (ValueError, KeyError):
            return shortened(said)
    if said:
        return shortened(said)
    return ONE_VIEW if count == 1 else f"{count} views"


def given_prompts(record: Record) -> Any:
    """The prompts, where they are not those a data set is usually scored with."""
    prompts = record.prompts
    if prompts in (None, _EACH):
        return None
    names = joined(record) or (record.dataset,)
    return None if all(list(prompts) == _usual(name) for name in names) else prompts


@cache
def _usual(dataset: str) -> list[str]:
    if dataset.startswith("icons-"):
        return list(_ICONS)
    return list(templates(dataset if dataset in NAMES else "single"))


def prompt_words(prompts: Any) -> str:
    """
    >>> prompt_words(["a photo of a {}."]), prompt_words(["a {}.", "the {}."])
    ('prompt "a photo of a {}."', '2 prompts')
    """
    if isinstance(prompts, list) and len(prompts) == 1:
        return f'prompt "{shortened(plain(prompts[0]))}"'
    return f"{len(prompts)} prompts" if isinstance(prompts, list) else f"prompts {prompts}"


def shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def lacking(record: Record) -> str:
    """What a data set lacks of the literature's, in words; nothing if it is whole or unknown."""
    samples, expected = record.samples, record.expected
    if expected is not None and samples is not None and samples != expected:
        return f"{samples:,} images, not {expected:,}"
    left_out = record.left_out or 0
    return f"{left_out:,} images left out" if left_out else ""


def comparable(record: Record) -> bool:
    """Whether the paper's number is of the same prompts and images."""
    prompts = given_prompts(record)
    as_printed = prompts is None or (
        _paper(record.method).one_prompt and prompts == list(templates("single"))
    )
    return as_printed and not lacking(record)


def paper_views(method: str, dataset: str) -> str | None:
    """The views behind the paper's number, as far as published code tells.

    Examples
    --------
    >>> paper_views("soba", "imagenet-a"), paper_views("soba", "dtd"), paper_views("mta", "dtd")
    ('64 views, AugMix', 'one view', '64 views')
    """
    printed = _paper(method).views
    if printed is None:
        return None
    if dataset == "imagenet":
        return printed.imagenet
    return printed.variants if dataset in _VARIANTS else printed.elsewhere


def _paper(method: str) -> PaperSettings:
    """What a method's paper sets; of a method that is not known here, nothing."""
    return card(method).paper if method in list_methods() else PaperSettings()


def stream_views(dataset: str) -> str:
    """TDA's views: one protocol, though they differ between data sets."""
    return AUGMIX if dataset in _VARIANTS else ONE_VIEW


def other_protocol(record: Record) -> tuple[str, str] | None:
    """(ours, the paper's) in words, where views or prompts are other ones."""
    ours, theirs = views(record), paper_views(record.method, record.dataset)
    differences = [(ours, theirs)] if theirs not in (None, ours) else []
    prompts = record.prompts
    single = list(templates("single"))
    if _paper(record.method).one_prompt and isinstance(prompts, list) and prompts != single:
        differences.append((prompt_words(prompts), prompt_words(single)))
    if not differences:
        return None
    return ", ".join(a for a, _ in differences), ", ".join(str(b) for _, b in differences)
