import numpy as np
import pytest
import torch

import soba
from soba.testing import example_stream


def test_the_surest_tenth_of_the_views_decides():
    """TDA's rule by hand: feature, logits and entropy from the 2 surest of 20 views."""
    rng = np.random.default_rng(0)
    features, _, text = example_stream(n=30, classes=4, width=12)
    views = features[:, None] + 0.3 * rng.normal(size=(30, 20, 12))
    views /= np.linalg.norm(views, axis=-1, keepdims=True)
    queue = soba.TDA(text, logit_scale=30.0, alpha=0.0, negative_alpha=0.0)
    logits = queue.adapt(views, ids=np.arange(30))
    expected, entropies, means = [], {}, {}
    for i in range(30):
        z = 30.0 * views[i] @ text.T
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        chosen = np.argsort(-(p * np.log(p)).sum(1))[:2]
        expected.append(z[chosen].mean(0))
        mean = p[chosen].mean(0)
        entropies[i], means[i] = -(mean * np.log(mean)).sum(), views[i][chosen].mean(0)
    np.testing.assert_allclose(logits, expected, rtol=1e-4)
    np.testing.assert_allclose(queue.logits(views), expected, rtol=1e-4)
    items = queue._queues["positive"].items()
    for id_, entropy, feature in zip(
        items.ids.tolist(), items.entropies, items.features, strict=True
    ):
        np.testing.assert_allclose(entropy, entropies[id_], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(feature, means[id_], atol=1e-5)  # not renormalised
        assert np.linalg.norm(feature) < 0.999
    torch_logits = soba.TDA(text, logit_scale=30.0, alpha=0.0, negative_alpha=0.0).adapt(
        torch.asarray(views)
    )
    np.testing.assert_allclose(torch_logits.numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("name", ["ncm", "soba", "tda"])
def test_many_views_in_blocks(name):
    """More samples than a block holds: same answers as in single calls."""
    rng = np.random.default_rng(1)
    features, _, text = example_stream(n=60, classes=300, width=16)
    views = features[:, None] + 0.1 * rng.normal(size=(60, 64, 16))
    whole = soba.create_adapter(name, text).adapt(views)
    single = soba.create_adapter(name, text)
    parts = np.concatenate([single.adapt(views[i : i + 1]) for i in range(60)])
    np.testing.assert_allclose(whole, parts, atol=1e-5 * np.abs(whole).max())
