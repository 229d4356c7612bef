"""TPT: the step it takes, against the formulas of the paper."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision_shim
from rounding import assert_same_logits

from soba.tune._base import marginal_entropy, surest
from soba.tune.tpt import TPT


def mean_entropy(logits):
    """The entropy of the mean probability, the obvious way."""
    mean = np.asarray(torch.softmax(logits.double(), dim=-1).mean(dim=0))
    return float(-(mean * np.log(mean)).sum())


def test_the_loss_is_the_entropy_of_the_mean():
    logits = 3 * torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    assert float(marginal_entropy(logits)) == pytest.approx(mean_entropy(logits), rel=1e-5)
    certain = torch.tensor([[0.0, -2000.0]]).requires_grad_()
    loss = marginal_entropy(certain)
    loss.backward()
    assert loss.item() == 0 and certain.grad.isfinite().all()


def test_surest_views():
    logits = torch.tensor([[1.0, 1.0], [9.0, 0.0], [0.0, 2.0], [0.0, 5.0]])
    assert surest(logits, 2).tolist() == [1, 3]


def test_a_step_lowers_the_entropy_it_minimises(encoder, names, views):
    tuner = TPT(encoder, names)
    for sample in torch.asarray(views):
        before = tuner._cosine_logits(sample, tuner._prompts.features(tuner._prompts.initial))
        rows = surest(before, 2)  # a tenth of twenty
        after = tuner._cosine_logits(sample, tuner._prompts.features(tuner.tune(sample)))
        assert mean_entropy(after[rows]) < mean_entropy(before[rows])


def test_one_step_is_adamw_on_the_context(encoder, names, views):
    tuner, sample = TPT(encoder, names), torch.asarray(views)[0]
    context = tuner._prompts.initial.clone().requires_grad_()
    logits = tuner._cosine_logits(sample, tuner._prompts.features(context))
    entropy = -(torch.softmax(logits, 1) * torch.log_softmax(logits, 1)).sum(1)
    mean = torch.softmax(logits[entropy.argsort()[:2]], 1).mean(0)
    (gradient,) = torch.autograd.grad(-(mean * mean.log()).sum(), context)
    expected = context * (1 - 5e-3 * 0.01) - 5e-3 * gradient / (gradient.abs() + 1e-8)
    sure = gradient.abs() > 1e-4  # elsewhere the sign of the step is rounding
    torch.testing.assert_close(tuner.tune(sample)[sure], expected[sure].detach())


def test_the_first_step_chooses_the_views_for_all_steps(encoder, names, views):
    """By hand with the first choice; chosen anew the views, and the context, would be others."""

    def tuned(sample, anew):
        context = tuner._prompts.initial.clone().requires_grad_()
        optimiser, choices = torch.optim.AdamW([context], lr=5e-3), []
        for _ in range(3):
            logits = tuner._cosine_logits(sample, tuner._prompts.features(context))
            choices.append(surest(logits.detach(), 2))
            mean = torch.softmax(logits[choices[-1 if anew else 0]], 1).mean(0)
            optimiser.zero_grad()
            (-(mean * mean.log()).sum()).backward()
            optimiser.step()
        return context.detach(), len({tuple(sorted(choice.tolist())) for choice in choices})

    tuner, differ = TPT(encoder, names, steps=3), 0
    for sample in torch.asarray(views):
        expected, kinds = tuned(sample, anew=False)
        other, _ = tuned(sample, anew=True)
        # On average: where a gradient is next to nothing, the sign of its step is rounding.
        assert (tuner.tune(sample) - expected).abs().mean() < 1e-4
        if kinds > 1:
            differ += 1
            assert (other - expected).abs().mean() > 1e-3
    assert differ >= 3


def test_the_image_is_scored_with_the_prompt_its_views_have_tuned(encoder, names, views):
    tuner = TPT(encoder, names)
    all_logits = tuner.adapt(views)
    for sample, logits in zip(torch.asarray(views), all_logits, strict=True):
        text = tuner._prompts.features(tuner.tune(sample))
        np.testing.assert_allclose(
            logits, (tuner.logit_scale * text @ sample[0]).numpy(), atol=1e-4
        )


def test_samples_do_not_touch_each_other(encoder, names, views):
    tuner = TPT(encoder, names, steps=2)
    together = tuner.adapt(views)
    assert_same_logits(tuner.adapt(views[::-1].copy()), together[::-1])


def test_too_few_views(encoder, names, views):
    with pytest.raises(ValueError, match=r"0\.1 of the views, none of 9"):
        TPT(encoder, names).adapt(views[:, :9])
    for plain in (views[:, 0], views[0, 0]):
        with pytest.raises(ValueError, match=r"tpt .*features of shape \(n, V, "):
            TPT(encoder, names).logits(plain)
    with pytest.raises(ValueError, match="selection must be a share"):
        TPT(encoder, names, selection=1.5)


@pytest.mark.long
def test_a_thousand_classes_fit_into_memory():
    """The official code needs over 16 GB of GPU for this."""
    code = """
import resource, numpy, torch, torchvision_shim
torchvision_shim.install()
from soba.encode.openclip import OpenClip
from soba.tune.tpt import TPT
torch.manual_seed(0)
encoder = OpenClip.load("ViT-B-16", "random", device="cpu")
names = [f"{a} {b}" for a in "red old tall wet odd big shy raw dry new".split()
         for b in (f"animal number {i}" for i in range(100))]
views = numpy.random.default_rng(0).normal(size=(1, 64, 512)).astype("f4")
logits = TPT(encoder, names).adapt(views)
assert logits.shape == (1, 1000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
    tests = Path(torchvision_shim.__file__).parent
    paths = os.pathsep.join([str(tests), str(tests.parent)])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    gigabytes = float(run.stdout.split()[-1])
    print(f"peak {gigabytes:.2f} GB")
    assert gigabytes < 6
