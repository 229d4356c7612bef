"""Classes as Gaussians with one covariance: the model behind streams, whole sets and `explain`.

Images are shared out among the classes by responsibilities r_ik. What the model needs of them are
sums over images, so that blocks and shards of a set add up. With n_k = sum_i r_ik:

- S is the covariance within the classes, A = (S + r I)^-1 its ridge precision. The ridge
  r = tr(S^2) / tr(S) is the eigenvalue of a usual direction, so no formula knows how many
  dimensions there are: columns of zeros, or a rotation of images and text, change nothing.
- D = tr(A S) counts the dimensions in which classes vary (effective dimensions).
- m_k, the posterior mean, is shrunk to the text by empirical Bayes. Over the classes, the means
  mu_k - g regress on the centred text t_k with slope c; what the text leaves unexplained gives
  kappa, the number of images that a text is worth.
- G_k(f) = f A m_k - m_k A m_k / 2 - g A m_k + D / (2 (n_k + kappa)): the score of a Gaussian. The
  last term gives back what a class loses on its own images because its mean is known only so well.
- e_k = n_k / (n_k + 2 D), the evidence: to tell two classes apart by means of n_k images each has
  noise 2 D / n_k in the score, and this is the shrinkage that noise asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soba.adapt._statistics import inverse

LEAST_FREEDOM = 0.5  # degrees of freedom, in images: with fewer there is no scatter to speak of
LEAST_TRACE = 1e-6  # of S: below are copies of one image that rounded
LEAST_VARIANCE = 1e-3  # of tr(S), for what the text leaves unexplained: keeps kappa finite
LEAST_MASS = 1e-9  # of images: a class without any divides by this


@dataclass(frozen=True)
class Shares:
    """What the classes hold of some images: sums in float64, which add up over blocks."""

    mass: np.ndarray  # (C,) n_k = sum of r
    squares: np.ndarray  # (C,) sum of r^2
    sums: np.ndarray  # (C, d) sum of r f

    def __add__(self, other: Shares) -> Shares:
        return Shares(self.mass + other.mass, self.squares + other.squares, self.sums + other.sums)


@dataclass(frozen=True)
class Gaussians:
    """G_k(f) = f . weights_k + bias_k: how well an image fits class k, in nats up to a constant."""

    weights: np.ndarray  # (C, d) float32, A m_k
    bias: np.ndarray  # (C,) float32
    evidence: np.ndarray  # (C,) float32, e_k
    # What a mean that is known badly costs in EM: its predictive density is wider.
    width: np.ndarray  # (C,) float32
    mass: np.ndarray  # (C,) n_k
    text_worth: float  # kappa

    @property
    def average_evidence(self) -> float:
        """e, the evidence behind an average image."""
        return float(self.mass @ self.evidence / self.mass.sum())


def fit_gaussians(shares: Shares, second_moments: np.ndarray, text: np.ndarray) -> Gaussians | None:
    """The M step: from shares and (d, d) sum of f f^T; None where no class has scatter."""
    mass = np.maximum(shares.mass, LEAST_MASS)
    total, spent = mass.sum(), shares.squares / mass  # a mean takes a degree of freedom
    freedom = float(total - spent.sum())
    if freedom < LEAST_FREEDOM:
        return None
    means = shares.sums / mass[:, None]
    weighted = (means * np.sqrt(mass)[:, None]).astype(np.float32)
    covariance = (second_moments - weighted.T @ weighted) / freedom
    trace = float(np.trace(covariance))
    if trace < LEAST_TRACE:
        return None
    ridge = float(np.vdot(covariance, covariance)) / trace
    covariance[np.diag_indices_from(covariance)] += ridge
    # The condition number is below tr(S) / r + 1, some hundred at most: float32 will do.
    precision = inverse(covariance.astype(np.float32))
    dimensions = len(covariance) - ridge * float(np.trace(precision, dtype=np.float64))

    centre = shares.sums.sum(axis=0) / total
    spread, text = means - centre, text - (mass @ text) / total
    along, lengths = np.vecdot(spread, text), np.vecdot(text, text)
    slope = max(float(mass @ along) / max(float(mass @ lengths), 1e-30), 0.0)
    rest = spread - slope * text
    unexplained = float(mass @ np.vecdot(rest, rest) - trace * spent.sum()) / total
    text_worth = trace / max(unexplained, LEAST_VARIANCE * trace)

    known = mass + text_worth  # the precision of each mean, in images
    posterior = (mass[:, None] * spread + text_worth * slope * text) / known[:, None]
    weights = posterior.astype(np.float32) @ precision
    bias = (dimensions / known - np.vecdot(weights, posterior)) / 2.0 - weights @ centre
    return Gaussians(
        weights,
        bias.astype(np.float32),
        (mass / (mass + 2.0 * dimensions)).astype(np.float32),
        (-dimensions / 2.0 * np.log1p(1.0 / known)).astype(np.float32),
        mass,
        text_worth,
    )
