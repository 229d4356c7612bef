"""Slow and obvious: transduction by loops over images and classes, in float64.

Written from the formulas in the header of soba/adapt/transduction.py, sharing no code with it.
"""

from __future__ import annotations

import math

import numpy as np


def shares_of(logits):
    shares = []
    for row in logits:
        powers = [math.exp(value - max(row)) for value in row]
        shares.append([power / sum(powers) for power in powers])
    return np.array(shares)


def prior_of(counts):
    """log(C pi) of the classes, held back by the perplexity of pi."""
    n, C = sum(counts), len(counts)
    average = n / C
    variance = sum((count - average) ** 2 for count in counts) / C
    ratio = variance / (average * (1 - 1 / C))
    if ratio <= 1:
        return [0.0] * C
    alpha = (n - ratio) / (ratio - 1) / C
    pi = [(count + alpha) / (n + alpha * C) for count in counts]
    perplexity = math.exp(-sum(p * math.log(p) for p in pi))
    return [(1 - perplexity / C) ** 0.25 * math.log(C * p) for p in pi]


def step(images, text, z, r, doubt, first):
    """New logits from the shares r (n, C): one M step and the scores of one E step."""
    (n, d), C = images.shape, len(text)
    mass = [sum(r[i, k] for i in range(n)) for k in range(C)]
    squares = [sum(r[i, k] ** 2 for i in range(n)) for k in range(C)]
    seen = [k for k in range(C) if mass[k] > 0.05]
    some = [k for k in range(C) if mass[k] > 0]
    mu = {k: sum(r[i, k] * images[i] for i in range(n)) / mass[k] for k in some}
    S = np.zeros((d, d))
    for i in range(n):
        for k in some:
            S += r[i, k] * np.outer(images[i] - mu[k], images[i] - mu[k])
    S /= sum(mass) - sum(squares[k] / mass[k] for k in some)
    A = np.linalg.inv(S + np.trace(S @ S) / np.trace(S) * np.eye(d))
    D = np.trace(A @ S)

    g = sum(mu[k] for k in seen) / len(seen)
    t = text - sum(text[k] for k in seen) / len(seen)
    gaps = {k: mu[k] - g for k in some}
    slope = sum(mass[k] * gaps[k] @ t[k] for k in seen) / sum(mass[k] * t[k] @ t[k] for k in seen)
    slope = max(slope, 0.0)
    variance = sum(
        mass[k] * (np.sum((gaps[k] - slope * t[k]) ** 2) - np.trace(S) * squares[k] / mass[k] ** 2)
        for k in seen
    ) / sum(mass[k] for k in seen)
    kappa = np.trace(S) / max(variance, 1e-3 * np.trace(S))

    evidence = [(mass[k] / (mass[k] + D)) ** 2 for k in range(C)]
    known = [k for k in range(C) if evidence[k] >= max(evidence) / 4]
    weight = 4 * min(1.0, doubt / 0.25) ** 2
    prior = [0.0] * C if first else prior_of(mass)
    logits = np.empty((n, C))
    for i in range(n):
        G = []
        for k in range(C):
            p = mass[k] + kappa
            m = (mass[k] * gaps.get(k, np.zeros(d)) + kappa * slope * t[k]) / p
            wider = D / 2 * (1 / p - math.log(1 + 1 / p))
            G.append((images[i] - g) @ A @ m - m @ A @ m / 2 + wider)
        best = max(G[k] for k in known)
        for k in range(C):
            logits[i, k] = z[i, k] + weight * evidence[k] * (G[k] - best) + prior[k]
    return logits


def transduced(images, text, scale, rounds):
    """Logits after exactly so many rounds."""
    images, text = np.asarray(images, np.float64), np.asarray(text, np.float64)
    z = scale * images @ text.T
    logits, doubt = z, float(np.mean([1 - max(row) for row in shares_of(z)]))
    for number in range(rounds):
        logits = step(images, text, z, shares_of(logits), doubt, number == 0)
    return logits
