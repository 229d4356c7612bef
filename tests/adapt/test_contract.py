"""Every registered adapter passes the public contract, on every array kind."""

import numpy as np
import pytest
import torch
from methods import FROM_TEXT, SETS_ONLY

import soba
from soba._adapter_checks import check_order
from soba.registry import adapter_class
from soba.testing import CHECKS, Case, check_adapter

KINDS = {"numpy": np.asarray, "torch": torch.asarray}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FROM_TEXT)
def test_contract(name, kind, dtype, check):
    check(Case(adapter_class(name), KINDS[kind], dtype))


VARIANTS = [
    ("soba", {"reading": reading, "classifier": classifier})
    for reading in ("whitened", "gda", "dual")  # "literal": see test_soba.py
    for classifier in ("linear", "l1", "l2")
    if (reading, classifier) != ("gda", "l1")
] + [
    ("ncm", {"metric": "l1", "refresh": 7}),
    ("ncm", {"metric": "l2", "capacity": None}),
    ("soba", {"refresh": "tenths", "total": 240}),
    ("soba", {"capacity": None, "refresh": 1}),
    ("soba", {"capacity": 1, "refresh": 50}),
    ("tda", {"entropy_norm": "ln", "capacity": 1}),
    ("tda", {"negative_alpha": 0.0}),
    ("soba+", {"sample_size": 1000, "sample_key": 2**64 + 5}),
    ("soba+", {"sample_size": 12, "refresh": 10}),
    ("soba+", {"refresh": "tenths", "total": 240, "logit_scale": 100.0}),
    ("soba+", {"max_gap": 5}),
    ("mta", {"iterations": 2, "inner": 3, "lambda_q": 0.0}),
    ("zero", {"keep": 1.0}),
    ("oga", {"batch": 1, "capacity": 2}),
    ("adapt", {"refresh": 1, "capacity": 3, "set_capacity": 2}),
    ("adapt", {"capacity": None, "image_weight": 1.0, "sharpness": 100.0}),
    ("dota", {"refresh": 1, "eta": 1.0, "rho": 0.1}),
    ("dota", {"refresh": "growth", "max_gap": 20}),
    ("pta", {"time_constant": 2.0, "threshold": 0.0, "memory": 0.5}),
    ("transclip", {"neighbours": 0, "confident": 1}),
    ("transclip", {"neighbours": 7, "steps": 1, "text_weight": 0.5}),
    ("stata", {"neighbours": 0, "anchor": 8.0}),
    ("stata", {"neighbours": 7, "steps": 1, "likelihood_weight": 0.1}),
]


@pytest.mark.parametrize(("name", "params"), VARIANTS, ids=str)
def test_contract_of_variants(name, params):
    check_adapter(adapter_class(name), **params)


# What is forgotten depends on the order, so halves and whole differ by design: see
# test_soba_plus.py for what a merge keeps then.
ORDERLY = [check for check in CHECKS if check.__name__ != "check_merge"]


@pytest.mark.parametrize("check", ORDERLY, ids=lambda check: check.__name__)
def test_contract_with_a_horizon(check):
    check(Case(soba.SOBAPlus, params={"horizon": 80}))


@pytest.mark.parametrize("name", [*SETS_ONLY, "adapt"])
def test_numpy_and_torch_agree_on_whole_sets(name):
    one = Case(adapter_class(name), np.asarray)
    other = Case(adapter_class(name), torch.asarray)
    ours, theirs = one.make().transduce(one.stream), other.make().transduce(other.stream).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-4 * np.abs(ours).max())


@pytest.mark.parametrize("name", [name for name in FROM_TEXT if name not in SETS_ONLY])
def test_numpy_and_torch_agree(name):
    one = Case(adapter_class(name), np.asarray)
    other = Case(adapter_class(name), torch.asarray)
    a, b = one.make(), other.make()
    for part in (slice(0, 100), slice(100, 101), slice(101, 240)):
        ours, theirs = a.adapt(one.stream[part]), b.adapt(other.stream[part]).numpy()
        # MTA's steps magnify the rounding in which the libraries' products differ.
        rounding = 1e-4 if name.startswith("mta") else 1e-5
        np.testing.assert_allclose(ours, theirs, atol=rounding * np.abs(ours).max())


def test_bfloat16_and_gradients():
    case = Case(soba.SOBA)
    stream = torch.asarray(case.features).bfloat16().requires_grad_()
    assert soba.SOBA(torch.asarray(case.text)).adapt(stream).dtype == torch.float32


def test_a_broken_adapter_is_found_out():
    class Leaky(soba.NCM):
        """Learns in predict."""

        def _logits(self, batch):
            return self._adapt(batch, None)

    with pytest.raises(AssertionError):
        check_adapter(Leaky)


def test_a_method_that_is_episodic_only_in_name_is_found_out():
    class Remembers(soba.NCM):
        card = soba.Card("remembers", episodic=True)

    with pytest.raises(AssertionError, match="another order"):
        check_order(Case(Remembers))
