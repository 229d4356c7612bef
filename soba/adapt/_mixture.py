"""Classes as Gaussians with one covariance: the model of SOBA+, and how it is fitted by EM.

Samples are shared out among the classes by responsibilities r. What the model needs of them adds up
over samples (masses, sums, one matrix of second moments). No formula uses the number of dimensions:
columns of zeros, or a rotation of images and text alike, change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from soba.adapt._segments import add_segments, option_scores
from soba.adapt._statistics import inverse

LEAST_MASS = 0.05  # of samples, for a class to count as seen
LEAST_SPREAD = 1e-3  # of tr(S), for the variance of class means: keeps kappa finite
LEAST_SCATTER = 0.5  # of the variance between the classes, for tr(S)
# Likelihoods below e^-35 count as that: nothing, but no float near the smallest there are. Products
# with those take up to ten times as long, and a softmax over many classes is full of them.
LEAST_LOG = np.float32(-35.0)


@dataclass(frozen=True)
class Shares:
    """What the classes hold of some samples that are shared out among them."""

    mass: np.ndarray  # (C,) n_k = sum of r
    squares: np.ndarray  # (C,) sum of r^2
    sums: np.ndarray  # (C, d) sum of r f, float32

    def __add__(self, other: Shares) -> Shares:
        return Shares(self.mass + other.mass, self.squares + other.squares, self.sums + other.sums)

    def __sub__(self, other: Shares) -> Shares:
        """The shares without some of the samples that they are made of."""
        return Shares(
            np.maximum(self.mass - other.mass, 0.0),
            np.maximum(self.squares - other.squares, 0.0),
            self.sums - other.sums,
        )

    @cached_property
    def seen(self) -> np.ndarray:
        return self.mass > LEAST_MASS

    def apart(self, trace: float) -> float:
        """Variance between the classes, less what is due to the error of their means."""
        means, mass = self.means, self.mass[self.seen]
        centre = means.mean(axis=0)
        between = float(np.vecdot(means, means).mean() - centre @ centre)
        return between - trace * float((self.squares[self.seen] / mass**2).mean())

    @cached_property
    def means(self) -> np.ndarray:
        """(S, d) of the classes that are seen."""
        mass = self.mass[self.seen].astype(np.float32)
        means: np.ndarray = self.sums[self.seen] / mass[:, None]
        return means


@dataclass(frozen=True)
class Covariance:
    """S, shared by all classes, and A = (S + r I)^-1 with r = tr(S^2) / tr(S).

    The ridge r is the mean eigenvalue of S, weighted by the eigenvalues: the size of the axes that
    matter, however many there are. Fewer samples make S uneven, and so r larger. tr(S) is taken to
    be no less than a share of the variance between the classes, and r goes with it: repeated frames
    are not independent samples, and look as if every class were a point.
    """

    trace: float  # tr(S), or what it is taken to be
    inverse: np.ndarray  # (d, d) A, float32
    overlap: float  # tr(A S)

    @classmethod
    def within(cls, second_moments: np.ndarray, shares: Shares) -> Covariance | None:
        """The covariance around the class means; None where there is no scatter."""
        mass, squares = shares.mass[shares.seen], shares.squares[shares.seen]
        freedom = float(mass.sum() - (squares / mass).sum())
        if freedom <= 0.5:
            return None
        weighted = shares.means * np.sqrt(mass).astype(np.float32)[:, None]
        matrix = (second_moments - weighted.T @ weighted) / freedom
        trace = float(np.trace(matrix))
        if trace <= 1e-6:  # copies of one sample, up to rounding
            return None
        taken = max(trace, LEAST_SCATTER * shares.apart(trace))
        ridge = float(np.vdot(matrix, matrix)) / trace * (taken / trace)
        matrix[np.diag_indices_from(matrix)] += ridge
        # The condition number is below tr(S)/r + 1, a few dozens: float32 is good to about 1e-6.
        inverted = inverse(matrix.astype(np.float32))
        overlap = len(matrix) - ridge * float(np.trace(inverted, dtype=np.float64))
        return cls(taken, inverted, overlap)


@dataclass(frozen=True)
class Mixture:
    """score_k(f) = f . weights_k + bias_k: how well f fits class k, in nats up to a constant."""

    weights: np.ndarray  # (C, d) float32, A m_k
    bias: np.ndarray  # (C,) float32
    centre: np.ndarray  # (d,) float32, g
    mass: np.ndarray  # (C,) n_k
    slope: float  # c, of the class means on the text
    kappa: float  # how many samples the text of a class is worth

    @classmethod
    def fitted(
        cls,
        shares: Shares,
        covariance: Covariance | None,
        text: np.ndarray,
        *,
        at_least: float = 0.0,
    ) -> Mixture | None:
        """Posterior means under a prior from the text, g + c t_k.

        Every class is corrected for the error of its mean as if it had `at_least` so many samples.
        None where there is no scatter to tell distances by, or one class only.
        """
        seen, n = shares.seen, shares.mass
        if covariance is None or seen.sum() < 2:
            return None
        centre = shares.means.mean(axis=0, dtype=np.float64).astype(np.float32)
        spread = np.zeros_like(text)
        spread[seen] = shares.means - centre
        text = text - text[seen].mean(axis=0)
        # Squared lengths and products of (mu_k - g) and t_k: all that slope and kappa need.
        lengths, along, texts = (
            np.vecdot(a, b).astype(np.float64)
            for a, b in ((spread, spread), (spread, text), (text, text))
        )
        slope = max(n[seen] @ along[seen] / max(n[seen] @ texts[seen], 1e-12), 0.0)
        error = covariance.trace * shares.squares / np.maximum(n, LEAST_MASS) ** 2
        around = lengths - 2.0 * slope * along + slope**2 * texts - error
        variance = float(n[seen] @ around[seen] / n[seen].sum())
        kappa = covariance.trace / max(variance, LEAST_SPREAD * covariance.trace)
        precision = n + kappa
        spread *= (n / precision)[:, None].astype(np.float32)
        text *= (kappa * slope / precision)[:, None].astype(np.float32)
        posterior = spread + text
        weights = posterior @ covariance.inverse
        # tr(A S) / (2 (n_k + kappa)) gives back what a class loses on its own samples because its
        # mean is known only so well. A class that has far fewer than usual may hold strays only,
        # and they have lost nothing.
        corrected = covariance.overlap / (np.maximum(n, at_least) + kappa)
        bias = 0.5 * (corrected - np.vecdot(weights, posterior))
        bias = (bias - weights @ centre).astype(np.float32)
        return cls(weights, bias, centre, n, float(slope), float(kappa))

    def score(self, rows: np.ndarray) -> np.ndarray:
        """(n, d) -> (n, C)."""
        scores: np.ndarray = rows @ self.weights.T
        scores += self.bias
        return scores

    def score_options(
        self, rows: np.ndarray, options: np.ndarray, at: np.ndarray | None = None
    ) -> np.ndarray:
        """(n, d) rows, or rows[at], and (n, k) classes for each -> (n, k)."""
        at = np.arange(len(rows)) if at is None else at
        scores = option_scores(rows, at, self.weights, options)
        scores += self.bias[options]
        return scores


def second_moments(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(d, d): the weighted sum of f f^T over rows (n, d)."""
    weighted = rows * np.sqrt(weights).astype(np.float32)[:, None]
    moments: np.ndarray = weighted.T @ weighted
    return moments


def share_out(rows: np.ndarray, responsibilities: np.ndarray) -> Shares:
    """Shares of rows (n, d) under dense responsibilities (n, C)."""
    mass = responsibilities.sum(axis=0, dtype=np.float64)
    squares = np.square(responsibilities).sum(axis=0, dtype=np.float64)
    return Shares(mass, squares, responsibilities.T @ rows)


def share_out_options(
    rows: np.ndarray,
    options: np.ndarray,
    share: np.ndarray,
    classes: int,
    at: np.ndarray | None = None,
) -> Shares:
    """Shares of rows (n, d), or rows[at], that go to a few classes each: (n, k) options, share."""
    where = options.reshape(-1)
    mass = np.bincount(where, share.reshape(-1), classes)
    squares = np.bincount(where, share.reshape(-1) ** 2, classes)
    sums = np.zeros((classes, rows.shape[1]), np.float32)
    at = np.repeat(np.arange(len(rows)) if at is None else at, options.shape[1])
    add_segments(sums, rows, at, where, share.reshape(-1))
    return Shares(mass, squares, sums)


def likelihoods(logits: np.ndarray) -> np.ndarray:
    """(n, C) logits -> likelihoods, 1 for the likeliest class of a row."""
    below = logits - logits.max(axis=1, keepdims=True)
    chances: np.ndarray = np.exp(np.maximum(below, LEAST_LOG, out=below), out=below)
    return chances


def class_prior(logits: np.ndarray, rounds: int = 10) -> np.ndarray:
    """How often each class occurs, from (n, C) logits of a uniform sample, by EM.

    The counts have a symmetric Dirichlet prior whose strength they choose themselves: where they
    vary between the classes no more than chance makes them, all classes are equally frequent.
    """
    likelihood = likelihoods(logits)
    n, classes = likelihood.shape
    prior = np.full(classes, 1.0 / classes)
    for _ in range(rounds):
        # Not by `@`: OpenBLAS's AVX-512 kernel for five columns looks at memory that nobody wrote,
        # and numpy warns of an invalid value, now and then, though the product is right.
        total = np.vecdot(likelihood, prior.astype(np.float32))
        counts = prior * (likelihood.T @ (1.0 / total))
        strength = _dirichlet_strength(counts)
        prior = (counts + strength) / (n + strength * classes)
    return prior


def held_back(chances: np.ndarray, power: float) -> np.ndarray:
    """(C,) log(C pi), held back by (1 - perplexity(pi)/C)^power; 0 where all are equal.

    What CLIP prefers is no prior, so it counts in full only where many classes do not occur.
    """
    logs, classes = np.log(np.maximum(chances, 1e-300)), len(chances)
    perplexity = float(np.exp(-(chances @ logs)))
    strict = max(1.0 - perplexity / classes, 0.0) ** power
    held: np.ndarray = strict * (logs + np.log(classes))
    return held


def _dirichlet_strength(counts: np.ndarray) -> float:
    """Pseudo-count of each class, by the moments of a Dirichlet-multinomial."""
    classes, n = len(counts), float(counts.sum())
    if classes < 2:
        return 1.0
    chance = n / classes * (1.0 - 1.0 / classes)  # the variance of equally frequent classes
    ratio = float(counts.var(ddof=1)) / chance
    if ratio <= 1.0:
        return 1e4
    return float(np.clip((n - ratio) / (ratio - 1.0) / classes, 0.05, 1e4))
