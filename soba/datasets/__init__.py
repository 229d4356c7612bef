"""Where labelled images come from: the benchmarks' fifteen sets by name, or anyone's folder."""

from soba.datasets.base import ImageSet
from soba.datasets.catalogue import GROUPS, NAMES, check, class_names, expected, load, survey
from soba.datasets.few_shot import few_shot
from soba.datasets.folder import load_images

__all__ = [
    "GROUPS",
    "NAMES",
    "ImageSet",
    "check",
    "class_names",
    "expected",
    "few_shot",
    "load",
    "load_images",
    "survey",
]
