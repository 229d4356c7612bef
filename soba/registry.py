"""Names -> adapters. A class is imported when it is asked for, so `import soba` stays light."""

from __future__ import annotations

import difflib
import importlib
import os
from typing import Any

from soba._files import load_checked
from soba.adapt.base import Adapter

_KNOWN = {
    "zero-shot": "soba.adapt.zero_shot:ZeroShot",
    "ncm": "soba.adapt.ncm:NCM",
    "soba": "soba.adapt.soba:SOBA",
    "soba+": "soba.adapt.soba_plus:SOBAPlus",
    "tda": "soba.adapt.tda:TDA",
    "gda": "soba.adapt.gda:GDA",
    "tip-adapter": "soba.adapt.tip_adapter:TipAdapter",
    "tip-adapter-f": "soba.tune.tip_adapter_f:TipAdapterF",
    "clip+views": "soba.adapt.clip_views:ClipViews",
    "mta": "soba.adapt.mta:MTA",
    "mta-ensemble-mean": "soba.adapt.mta_ensemble:MTAEnsembleMean",
    "mta-ensemble-vote": "soba.adapt.mta_ensemble:MTAEnsembleVote",
    "zero": "soba.adapt.zero:ZERO",
}


def list_adapters() -> list[str]:
    """Names of all adapters, in the order of the paper's tables.

    >>> list_adapters()[:3]
    ['zero-shot', 'ncm', 'soba']
    """
    return list(_KNOWN)


# Built from (encoder, class names, template) in place of text features; they need torch.
_TUNERS = {
    "tpt": "soba.tune.tpt:TPT",
    "difftpt": "soba.tune.difftpt:DiffTPT",
    "histpt": "soba.tune.histpt:HisTPT",
    "coop": "soba.tune.coop:CoOp",
    "cocoop": "soba.tune.cocoop:CoCoOp",
}


def list_tuners() -> list[str]:
    """Names of the methods that tune prompts: their classes take an encoder and class names.

    >>> list_tuners()
    ['tpt', 'difftpt', 'histpt', 'coop', 'cocoop']
    """
    return list(_TUNERS)


def adapter_class(name: str) -> type[Adapter]:
    """The class behind a name."""
    known = _KNOWN | _TUNERS
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown method {name!r}.{hint} Known: {', '.join(known)}")
    module, _, attribute = known[name].partition(":")
    found: type[Adapter] = getattr(importlib.import_module(module), attribute)
    return found


def adapter(name: str, text_features: Any, **hyper_parameters: Any) -> Adapter:
    """An adapter by name.

    >>> import numpy as np
    >>> adapter("soba", np.eye(3), alpha=5.0)
    SOBA(<3 classes x 3>, alpha=5.0)
    """
    return adapter_class(name)(text_features, **hyper_parameters)


def load(path: str | os.PathLike[str], text: Any = None, **expected: Any) -> Adapter:
    """The adapter saved in a file, whichever it is; see :meth:`Adapter.load`."""
    arrays, meta = load_checked(path)
    try:
        cls = adapter_class(str(meta.get("adapter")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return cls._loaded(path, arrays, meta, text, expected)
