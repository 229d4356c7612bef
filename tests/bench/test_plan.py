"""What is wrong with a plan is known before any work."""

import pytest
from colours import Colours
from tiny_clip import tiny_clip  # makes open_clip importable, which tpt and difftpt need

from soba.bench.method_factory import min_views
from soba.bench.plan import Plan
from soba.registry import adapter_class


def test_methods_that_learn_from_a_share_of_the_views_need_enough_of_them():
    plan = Plan(Colours(), ("zero", "tpt", "difftpt"), views=3, fallback=True)
    assert plan.problems() == [
        "tpt: needs 10 views at least: say --views",
        "difftpt: needs 5 views at least: say --views",
    ]
    assert Plan(Colours(), ("tpt", "difftpt"), views=10, fallback=True).problems() == []


@pytest.mark.parametrize("method", ["tpt", "difftpt"])
def test_the_methods_themselves_say_the_same(method):
    settings = {"fallback": True} if method == "difftpt" else {}
    tuner = adapter_class(method)(tiny_clip(), ["cat", "dog"], "a {}.", **settings)
    least = min_views(method)
    tuner._check_views(least)
    with pytest.raises(ValueError, match="views"):
        tuner._check_views(least - 1)
