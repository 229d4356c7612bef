"""Names -> methods: those of this package, those registered, and those of installed packages.

A class of ours is imported when it is asked for, so `import soba` stays light. Another package
brings its methods along with entry points, in its pyproject.toml:

    [project.entry-points."soba.methods"]
    my-method = "my_package.my_method:MyMethod"

They are imported when all methods are listed, or when a name is asked for that is not ours.
"""

from __future__ import annotations

import difflib
import fnmatch
import importlib
import os
import threading
import warnings
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from soba.adapt.base import Adapter
from soba.adapt.card import FAMILIES, NOT_STATED, Card

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "soba.methods"  # of entry points

_OURS = {
    "zero-shot": "soba.adapt.zero_shot:ZeroShot",
    "ncm": "soba.adapt.ncm:NCM",
    "tda": "soba.adapt.tda:TDA",
    "soba": "soba.adapt.soba:SOBA",
    "soba+": "soba.adapt.soba_plus:SOBAPlus",
    "etta": "soba.adapt.etta:ETTA",
    "oga": "soba.adapt.oga:OGA",
    "adapt": "soba.adapt.adapt:ADAPT",
    "dota": "soba.adapt.dota:DOTA",
    "pta": "soba.adapt.pta:PTA",
    "transclip": "soba.adapt.transclip:TransCLIP",
    "stata": "soba.adapt.stata:StatA",
    "gda": "soba.adapt.gda:GDA",
    "tip-adapter": "soba.adapt.tip_adapter:TipAdapter",
    "tip-adapter-f": "soba.tune.tip_adapter_f:TipAdapterF",
    "clip+views": "soba.adapt.clip_views:ClipViews",
    "mta": "soba.adapt.mta:MTA",
    "mta-ensemble-mean": "soba.adapt.mta_ensemble:MTAEnsembleMean",
    "mta-ensemble-vote": "soba.adapt.mta_ensemble:MTAEnsembleVote",
    "zero": "soba.adapt.zero:ZERO",
    "tpt": "soba.tune.tpt:TPT",
    "difftpt": "soba.tune.difftpt:DiffTPT",
    "histpt": "soba.tune.histpt:HisTPT",
    "coop": "soba.tune.coop:CoOp",
    "cocoop": "soba.tune.cocoop:CoCoOp",
}
_registered: dict[str, type[Adapter]] = {}
_loading = threading.RLock()

Method = TypeVar("Method", bound=type[Adapter])


def list_methods(pattern: str | None = None, family: str | None = None) -> list[str]:
    """Names of all methods, ours first; of those that match a pattern, or of one family.

    Examples
    --------
    >>> list_methods("soba*"), list_methods(family="few-shot")
    (['soba', 'soba+'], ['gda', 'tip-adapter', 'tip-adapter-f'])
    """
    if family is not None and family not in FAMILIES:
        raise ValueError(f"no family {family!r}; there are: {', '.join(FAMILIES)}")
    return [
        name
        for name in (*_OURS, *_strangers())
        if (pattern is None or fnmatch.fnmatchcase(name, pattern))
        and (family is None or card(name).family == family)
    ]


def card(name: str) -> Card:
    """What is known of a method; torch is not imported for it.

    Examples
    --------
    >>> card("tda").title, card("tpt").family
    ('TDA', 'tuner')
    """
    return adapter_class(name).card


def adapter_class(name: str) -> type[Adapter]:
    """The class behind a name."""
    if name in _OURS:
        module, _, attribute = _OURS[name].partition(":")
        cls: type[Adapter] = getattr(importlib.import_module(module), attribute)
        return cls
    if name not in _registered and name not in _strangers():
        known = list_methods()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown method {name!r}.{hint} Known: {', '.join(known)}")
    return _registered[name]


def saved_class(meta: Mapping[str, Any], path: str | os.PathLike[str]) -> type[Adapter]:
    """The class whose state is in a file that says `meta` of itself; an error names the file."""
    if "model" in meta:
        raise ValueError(
            f"{path}: a model that soba learn --transductive made of all images at once; soba "
            "predict answers with it, and it is no state to load, merge or learn on from"
        )
    if not isinstance(meta.get("adapter"), str):
        raise ValueError(f"{path}: does not say of which method it is a state")
    try:
        return adapter_class(meta["adapter"])
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_method(name: str, *, transductive: bool = False) -> None:
    """Refuse a method that does not learn from a stream of single images, or answer a set."""
    if not _learns_from_a_stream(name):
        others = ", ".join(filter(_learns_from_a_stream, list_methods()))
        needs = card(name).needs_in_words
        if card(name).family == "transductive":
            needs = "a whole set of features at once, transduce(features)"
        raise ValueError(
            f"{name} needs {needs}; images are classified by methods that "
            f"learn from the stream: {others}"
        )
    if transductive and name != "soba+":
        raise ValueError(f"{name} does not answer a set at once; soba+ does")


def _learns_from_a_stream(name: str) -> bool:
    return card(name).family == "stream" and card(name).needs == {"features"}


def register(cls: Method) -> Method:
    """Make a method known by the name on its card; also as a decorator.

    From then on `load`, and the commands of this process, take it as one of ours. An installed
    package says the same with an entry point, for every process.
    """
    name = _checked(cls).name
    if name in _OURS:
        raise ValueError(f"{_place(cls)}: {name!r} is the name of a method of soba's own")
    known = _registered.setdefault(name, cls)
    if _place(known) != _place(cls):
        raise ValueError(f"{_place(cls)}: {name!r} is the name of {_place(known)} already")
    _registered[name] = cls  # a module that is loaded again brings its class anew
    return cls


def provenance_of(method: type[Adapter]) -> str:
    """Where a method comes from, as its own card says: what it builds on speaks for itself.

    Examples
    --------
    >>> class Mine(adapter_class("tda")): ...
    >>> provenance_of(adapter_class("tda")), provenance_of(Mine)
    ('official algorithm', 'not stated')
    """
    return method.card.provenance if "card" in vars(method) else NOT_STATED


def create_adapter(name: str, text_features: Any, **hyper_parameters: Any) -> Adapter:
    """An adapter by name.

    Examples
    --------
    >>> import numpy as np
    >>> create_adapter("soba", np.eye(3), alpha=5.0)
    SOBA(<3 classes x 3>, alpha=5.0)
    """
    return adapter_class(name)(text_features, **hyper_parameters)


def _strangers() -> dict[str, type[Adapter]]:
    """Methods that are not ours; the first who asks has those of other packages imported.

    One that fails is named in a warning, and the rest works.
    """
    with _loading:
        points = _entry_points()
        while points:
            point = points.pop(0)  # before it is imported: its module may ask for methods, too
            try:
                cls = point.load()
                if _checked(cls).name != point.name:
                    raise ValueError(f"its card has another name, {cls.card.name!r}")
                register(cls)
            except Exception as error:  # a stranger's module may raise anything
                origin = "" if point.dist is None else f" of {point.dist.name}"
                warnings.warn(
                    f"method {point.name!r}{origin} ({point.value}) is left out: {error}",
                    stacklevel=3,
                )
    return _registered


@cache
def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # here: `import soba` does without

    return list(entry_points(group=GROUP))


def _checked(cls: type[Adapter]) -> Card:
    """The card of a class that can be registered."""
    if not (isinstance(cls, type) and issubclass(cls, Adapter)):
        raise TypeError(f"{cls!r} is not a subclass of soba.adapt.base.Adapter")
    method_card = vars(cls).get("card")  # that of a parent is another method's
    if not isinstance(method_card, Card):
        raise TypeError(f"{_place(cls)} has no card: give it `card = Card(...)`, with a name")
    return method_card


def _place(cls: type[Adapter]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
