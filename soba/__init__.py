"""soba: training-free test-time adaptation for CLIP.

>>> import numpy as np, soba
>>> adapter = soba.SOBA(np.eye(4))
>>> adapter.adapt(np.eye(4)).argmax(axis=1).tolist()
[0, 1, 2, 3]
"""

from soba.adapt.clip_views import ClipViews
from soba.adapt.gda import GDA
from soba.adapt.mta import MTA
from soba.adapt.mta_ensemble import MTAEnsembleMean, MTAEnsembleVote
from soba.adapt.ncm import NCM
from soba.adapt.soba import SOBA
from soba.adapt.soba_plus import SOBAPlus
from soba.adapt.tda import TDA
from soba.adapt.tip_adapter import TipAdapter
from soba.adapt.zero import ZERO
from soba.adapt.zero_shot import ZeroShot
from soba.encode.store import FeatureSet
from soba.registry import adapter, list_adapters, load

__version__ = "0.1.0.dev0"

__all__ = [
    "GDA",
    "MTA",
    "NCM",
    "SOBA",
    "TDA",
    "ZERO",
    "ClipViews",
    "FeatureSet",
    "MTAEnsembleMean",
    "MTAEnsembleVote",
    "SOBAPlus",
    "TipAdapter",
    "ZeroShot",
    "adapter",
    "list_adapters",
    "load",
]
