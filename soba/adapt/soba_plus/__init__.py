"""SOBA+: `model` and `prior` hold the theory, `answer` the formula, `fit` EM over what is kept."""

from soba.adapt.soba_plus.stream import ExpectedAccuracy, Explanation, SOBAPlus

__all__ = ["ExpectedAccuracy", "Explanation", "SOBAPlus"]
