"""soba: training-free test-time adaptation for CLIP.

>>> import numpy as np, soba
>>> adapter = soba.SOBA(np.eye(4))
>>> adapter.adapt(np.eye(4)).argmax(axis=1).tolist()
[0, 1, 2, 3]
"""

from typing import TYPE_CHECKING, Any

from soba.adapt.adapt import ADAPT
from soba.adapt.base import Adapter
from soba.adapt.card import Card
from soba.adapt.clip_views import ClipViews
from soba.adapt.dota import DOTA
from soba.adapt.etta import ETTA
from soba.adapt.gda import GDA
from soba.adapt.mta import MTA
from soba.adapt.mta_ensemble import MTAEnsembleMean, MTAEnsembleVote
from soba.adapt.ncm import NCM
from soba.adapt.oga import OGA
from soba.adapt.pta import PTA
from soba.adapt.soba import SOBA
from soba.adapt.soba_plus import SOBAPlus
from soba.adapt.stata import StatA
from soba.adapt.tda import TDA
from soba.adapt.tip_adapter import TipAdapter
from soba.adapt.transclip import TransCLIP
from soba.adapt.zero import ZERO
from soba.adapt.zero_shot import ZeroShot
from soba.answers import Answer
from soba.classifier import Classifier, load
from soba.encode.encoder import load_encoder
from soba.feature_set import FeatureSet
from soba.registry import create_adapter, list_methods, register

if TYPE_CHECKING:
    from soba.client import Client
    from soba.serve.durable import DurableStream

__version__ = "0.2.0"

__all__ = [
    "ADAPT",
    "DOTA",
    "ETTA",
    "GDA",
    "MTA",
    "NCM",
    "OGA",
    "PTA",
    "SOBA",
    "TDA",
    "ZERO",
    "Adapter",
    "Answer",
    "Card",
    "Classifier",
    "Client",
    "ClipViews",
    "DurableStream",
    "FeatureSet",
    "MTAEnsembleMean",
    "MTAEnsembleVote",
    "SOBAPlus",
    "StatA",
    "TipAdapter",
    "TransCLIP",
    "ZeroShot",
    "create_adapter",
    "list_methods",
    "load",
    "load_encoder",
    "register",
]


def __getattr__(name: str) -> Any:
    # Databases and servers are opened by few: what reaches them is imported by those alone.
    if name == "Client":
        try:
            from soba.client import Client
        except ImportError as error:
            from soba.encode._imports import no_package

            raise no_package("httpx", error, "client") from error
        return Client
    if name == "DurableStream":
        from soba.serve.durable import DurableStream

        return DurableStream
    raise AttributeError(f"module 'soba' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
