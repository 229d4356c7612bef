"""The contracts every adapter and every encoder passes, for other people's to run too.

>>> import soba
>>> check_adapter(soba.ZeroShot)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from soba._adapter_checks import CHECKS
from soba._assertions import assert_same_samples, assert_same_state
from soba._encoder_checks import check_encoder
from soba._examples import Case, example_stream, example_views
from soba._stream_checks import OF_ALL_STREAMS, OF_KEPT_SAMPLES
from soba.adapt.base import Adapter
from soba.adapt.stream import StreamAdapter

__all__ = [
    "CHECKS",
    "Case",
    "assert_same_samples",
    "assert_same_state",
    "check_adapter",
    "check_encoder",
    "check_stream_adapter",
    "example_stream",
    "example_views",
]


def check_adapter(
    cls: type[Adapter],
    *,
    convert: Callable[[np.ndarray], Any] = np.asarray,
    dtype: str = "float32",
    **params: Any,
) -> None:
    """Run all checks on an adapter class; raises AssertionError with what does not hold.

    `convert` makes the arrays to check with (`torch.asarray`, say), `params` are
    hyper-parameters for the constructor.
    """
    for check in CHECKS:
        check(Case(cls, convert, dtype, params))


def check_stream_adapter(
    cls: type[StreamAdapter],
    *,
    convert: Callable[[np.ndarray], Any] = np.asarray,
    dtype: str = "float32",
    **params: Any,
) -> None:
    """Run the checks of what replicas need of a stream adapter: deltas, views, forgotten ids.

    As `check_adapter`, which comes first: it has what all adapters must do. Methods that keep
    no samples must refuse to exchange deltas.

    Examples
    --------
    >>> from soba import NCM
    >>> check_stream_adapter(NCM)
    """
    if not issubclass(cls, StreamAdapter):
        raise TypeError(f"{cls.__name__} is no StreamAdapter, so it has no stream to tell of")
    for check in (*OF_ALL_STREAMS, *(OF_KEPT_SAMPLES if cls.keeps_samples else ())):
        check(Case(cls, convert, dtype, params))
