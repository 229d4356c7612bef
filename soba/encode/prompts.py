"""Class names and templates -> the text classifier, as CLIP, Tip-Adapter, TDA and GDA build it.

Every class name fills every template; the features are made unit, averaged over the templates and
made unit again. The named sets are in templates.json: "single" is what TPT and MTA use throughout,
"seven" and "eighty" are OpenAI's, and a data set's own name gives the templates TDA scores it with.
TPT's paper and TDA's thus differ in prompts as well as in method: compare under the same ones.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Hashable, Sequence
from importlib import resources
from itertools import islice
from pathlib import Path

import numpy as np

from soba._files import parse_json


def list_templates() -> list[str]:
    """Names of the template sets that come with soba.

    Examples
    --------
    >>> list_templates()[:4]
    ['single', 'seven', 'eighty', 'icon']
    """
    return list(_named())


def templates(name_or_path: str | os.PathLike[str]) -> tuple[str, ...]:
    """A named set, a file of one template per line (`#` starts a comment line), or one template.

    Examples
    --------
    >>> templates("dtd")
    ('{} texture.',)
    >>> templates("a sketch of a {}.")
    ('a sketch of a {}.',)
    """
    known, asked = _named(), os.fspath(name_or_path)
    if isinstance(name_or_path, str):
        if asked in known:
            entry = known[asked]
            return templates(entry) if isinstance(entry, str) else tuple(entry)
        if "{" in asked:
            return (_checked(asked, "template"),)
    path = Path(asked)
    if path.is_file():
        return _templates_of(path)
    near = difflib.get_close_matches(asked, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"no file and no known templates: {asked!r}.{hint} Known: {', '.join(known)}")


def templates_fingerprint(templates: Sequence[str]) -> str:
    """What tells text features of these templates from those of others.

    Examples
    --------
    >>> templates_fingerprint(["a photo of a {}."])
    '3849a0de'
    """
    return hashlib.sha256(json.dumps(list(templates)).encode()).hexdigest()[:8]


def fill(template: str, class_name: str) -> str:
    """The sentence; underscores of the name become spaces.

    Examples
    --------
    >>> fill("a photo of a {}.", "hot_dog")
    'a photo of a hot dog.'
    """
    return template.replace("{}", _spoken(class_name))


def read_class_names(
    path: str | os.PathLike[str], *, allow_duplicates: bool = False
) -> tuple[str, ...]:
    """One name per line, or a `.json` file with a list; the order is that of the labels.

    Parameters
    ----------
    allow_duplicates
        OpenAI's list of ImageNet classes says "missile" and "sunglasses" twice.
    """
    path = Path(path)
    text = _text_of(path)
    if path.suffix.lower() == ".json":
        try:
            names = parse_json(text)
        except ValueError as error:
            raise ValueError(f"{path}: not JSON: {error}") from error
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{path}: expected a list of strings")
        place = "item"
    else:
        # Lines at the end may be blank; between names a blank one would shift the labels.
        names, place = text.rstrip().splitlines(), "line"
    _check_names(names, lambda index: f"{path}, {place} {index + 1}", str(path), allow_duplicates)
    return tuple(name.strip() for name in names)


def classifier(
    encode_texts: Callable[[Sequence[str]], np.ndarray],
    class_names: Sequence[str],
    templates: Sequence[str],
    *,
    batch: int = 256,
    allow_duplicates: bool = False,
) -> np.ndarray:
    """The text features to classify with, a unit row per class.

    Parameters
    ----------
    encode_texts
        Sentences -> a row each; an encoder's own, whose `tokens` then say which names it reads
        alike ("Cat" and "cat", for one). Where nothing tells, lower case is assumed.
    class_names, templates
        What to say; every template has one `{}`.
    batch
        Sentences per call: memory grows with this, not with classes x templates.
    allow_duplicates
        Whether two classes may have the same name, or be read alike; they would get the same row.

    Examples
    --------
    >>> def encode(texts):
    ...     return np.array([[len(text), 1.0] for text in texts])
    >>> classifier(encode, ["cat", "polar_bear"], templates("single")).shape
    (2, 2)
    """
    if isinstance(class_names, str) or isinstance(templates, str):
        raise TypeError("class_names and templates must be lists of strings, not one string")
    if not templates:
        raise ValueError("templates: there are none")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, not {batch}")
    for index, template in enumerate(templates):
        _checked(template, f"templates[{index}]")
    _check_names(
        class_names, lambda index: f"class_names[{index}]", "class_names", allow_duplicates
    )
    if not allow_duplicates:
        _check_read_apart(encode_texts, class_names, templates, batch)

    sentences = (fill(template, name) for name in class_names for template in templates)
    sums: np.ndarray | None = None  # (C, d)
    done = 0
    while texts := list(islice(sentences, batch)):
        rows = _unit(_encoded(encode_texts, texts), [repr(text) for text in texts])
        if sums is None:
            sums = np.zeros((len(class_names), rows.shape[1]))
        # One row after the other: the sum does not depend on how the sentences were cut.
        np.add.at(sums, np.arange(done, done + len(texts)) // len(templates), rows)
        done += len(texts)
    assert sums is not None
    means = [f"the mean over templates of {name!r}" for name in class_names]
    return _unit(sums, means).astype(np.float32)


def _named() -> dict[str, str | list[str]]:
    text = resources.files("soba.encode").joinpath("templates.json").read_text("utf-8")
    known: dict[str, str | list[str]] = json.loads(text)
    return known


def _templates_of(path: Path) -> tuple[str, ...]:
    lines = enumerate(_text_of(path).splitlines(), start=1)
    templates = tuple(
        _checked(line.strip(), f"{path}, line {number}")
        for number, line in lines
        if line.strip() and not line.lstrip().startswith("#")
    )
    if not templates:
        raise ValueError(f"{path}: no templates in it")
    return templates


def _checked(template: str, where: str) -> str:
    rest = template.replace("{}", "", 1)
    if rest == template or "{" in rest or "}" in rest:
        raise ValueError(
            f"{where}: a template needs {{}} once, where the class name goes: {template!r}"
        )
    return template


def _check_names(
    names: Sequence[str], where: Callable[[int], str], source: str, allow_duplicates: bool
) -> None:
    if not names:
        raise ValueError(f"{source}: no class names")
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f"{where(index)}: a class name must be a string, not {name!r}")
        spoken = _spoken(name)
        if not spoken:
            raise ValueError(f"{where(index)}: an empty class name")
        if first.setdefault(spoken, index) != index and not allow_duplicates:
            raise ValueError(
                f"{where(index)}: {name!r} would be said like {where(first[spoken])}, "
                f"{names[first[spoken]]!r}; no image could be told apart by it"
            )


def _check_read_apart(
    encode_texts: Callable[[Sequence[str]], np.ndarray],
    names: Sequence[str],
    templates: Sequence[str],
    batch: int,
) -> None:
    """Raise if an encoder reads two class names alike in every template."""
    groups = [list(names)]
    for template in templates:
        groups = [
            alike for group in groups for alike in _alike(encode_texts, template, group, batch)
        ]
    for first, second, *_ in groups:
        raise ValueError(
            f"class names {first!r} and {second!r}: the same to this encoder; "
            "no image could be told apart by them"
        )


def _alike(
    encode_texts: Callable[[Sequence[str]], np.ndarray],
    template: str,
    names: list[str],
    batch: int,
) -> list[list[str]]:
    """Those of the names that an encoder reads alike in this template, in groups."""
    groups: dict[Hashable, list[str]] = {}
    for start in range(0, len(names), batch):
        some = names[start : start + batch]
        sentences = [fill(template, name) for name in some]
        for name, read in zip(some, _as_read(encode_texts, sentences), strict=True):
            groups.setdefault(read, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _as_read(
    encode_texts: Callable[[Sequence[str]], np.ndarray], sentences: list[str]
) -> list[Hashable]:
    """Of each sentence, all that matters to the encoder."""
    tell = getattr(getattr(encode_texts, "__self__", None), "tokens", None)
    tokens = None if tell is None else tell(sentences)
    if tokens is None:
        return [sentence.lower() for sentence in sentences]
    return [tuple(row) for row in tokens.tolist()]


def _spoken(name: str) -> str:
    return " ".join(name.replace("_", " ").split())


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from error


def _encoded(
    encode_texts: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str]
) -> np.ndarray:
    rows = np.asarray(encode_texts(texts), np.float64)
    if rows.ndim != 2 or len(rows) != len(texts):
        raise ValueError(
            f"encode_texts gave an array of shape {rows.shape} for {len(texts)} sentences"
        )
    return rows


def _unit(rows: np.ndarray, names: Sequence[str]) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    wrong = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 1e-12)))
    if wrong.size:
        raise ValueError(f"encode_texts gave no direction for {names[wrong[0]]}")
    unit: np.ndarray = rows / lengths
    return unit
