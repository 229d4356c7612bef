"""The hyper-parameters that papers and official code have, and where a run has others.

TDA's code has constants for each of its fifteen data sets. How they were chosen is not documented,
and there is no validation set, so they count as tuned on the test data.
"""

from __future__ import annotations

from typing import Any

from soba.adapt.base import parameter_defaults
from soba.registry import adapter_class, card

OFFICIAL = (
    "official constants per data set, tuned in an undocumented way: treat as tuned on the test data"
)

# What is given by the data or the run, or is no choice of a paper's.
_OF_THE_RUN = ("logit_scale", "total", "seed", "generated", "fallback")


def unlike_the_paper(
    method: str, hyper_parameters: dict[str, Any], dataset: str = ""
) -> dict[str, list[Any]]:
    """Name -> [ours, the paper's] of the hyper-parameters that are other ones.

    A method that is ours has no paper to differ from.

    Examples
    --------
    >>> unlike_the_paper("tda", {"alpha": 2.0, "beta": 5.0}, "cars")
    {'alpha': [2.0, 1.0], 'beta': [5.0, 7.0]}
    >>> unlike_the_paper("tda", {"alpha": 2.0, "beta": 5.0})
    {}
    """
    about = card(method)
    if about.provenance == "ours":
        return {}
    papers = _plain(parameter_defaults(adapter_class(method))) | about.paper.constants_for(dataset)
    if about.paper.schedule is not None:
        papers["refresh"] = about.paper.schedule
    return {
        name: [value, papers[name]]
        for name, value in hyper_parameters.items()
        if name in papers and name not in _OF_THE_RUN and value != papers[name]
    }


def _plain(defaults: dict[str, Any]) -> dict[str, Any]:
    """As an adapter's parameters are given, and as JSON has them: lists for tuples."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in defaults.items()}
