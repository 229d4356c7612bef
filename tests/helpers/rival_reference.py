"""Slow and obvious: ETTA, OGA, ADAPT, DOTA, PTA, TransCLIP-ZS and StatA with loops, in float64.

Written from the formulas, one sample and one class at a time, sharing no code with soba/.
"""

from __future__ import annotations

import math

import numpy as np
from reference import clip, unit


def entropy_plus(values, scale):
    """Entropy of a softmax with 1e-6 added to every probability."""
    top = max(values)
    shares = [math.exp(scale * (v - top)) for v in values]
    shares = [s / sum(shares) + 1e-6 for s in shares]
    return -sum(s * math.log(s) for s in shares)


def etta(features, text, scale):
    means, weights, answers = {}, {}, []
    for feature in features:
        f, z, label, _, _ = clip(feature, text, scale)
        cosines = z / scale
        new = math.exp(cosines[label])
        old = weights.get(label, 0.0)
        before = means.get(label, np.zeros_like(f))
        means[label] = (old * before + new * f) / (old + new)
        weights[label] = old + new
        cached = [float(f @ unit(means[k])) if k in means else 0.0 for k in range(len(text))]
        h_text, h_cache = entropy_plus(cosines, scale), entropy_plus(cached, scale)
        share = h_text / (h_text + h_cache)
        answers.append(
            [scale * (share * c + (1 - share) * t) for c, t in zip(cached, cosines, strict=True)]
        )
    return np.array(answers)


def bank_update(bank, capacity, label, entropy, *what):
    """Keep the `capacity` smallest entropies of a class."""
    members = bank.setdefault(label, [])
    members.append((entropy, *what))
    members.sort(key=lambda member: member[0])
    del members[capacity:]


def ridge(rows):
    """d ((n - 1) S + tr(S) I)^-1."""
    rows = np.array(rows)
    n, d = rows.shape
    covariance = np.cov(rows.T, ddof=1)
    return d * np.linalg.pinv((n - 1) * covariance + np.trace(covariance) * np.eye(d))


def gaussian(f, means, precision):
    return np.array([-0.5 * (f - m) @ precision @ (f - m) for m in means])


def oga(features, text, scale, capacity=8, tau=0.05, batch=32):
    bank, answers, learned = {}, [], None
    d = text.shape[1]
    for number, feature in enumerate(features, start=1):
        f, z, label, entropy, _ = clip(feature, text, scale)
        bank_update(bank, capacity, label, entropy, f)
        means = [np.array(row, float) for row in text]
        for k, members in bank.items():
            if len(members) >= 2:
                means[k] = sum(member[1] for member in members) / capacity
        if number % batch == 0:
            precision = d * np.eye(d)
            if max(len(members) for members in bank.values()) >= 3:
                rows = [m[1] - means[k] for k, members in bank.items() for m in members]
                if len(rows) <= 4 * d:
                    precision = ridge(rows)
                else:
                    precision = np.linalg.pinv(np.cov(np.array(rows).T, ddof=1))
            learned = precision
        answers.append(z if learned is None else z + tau * gaussian(f, means, learned))
    return np.array(answers)


def adapt_precision(bank, means):
    rows = [m[1] - means[k] for k, members in bank.items() for m in members]
    return np.eye(len(means[0])) if len(rows) == 1 else ridge(rows)


def adapt_answer(f, z, bank, means, sharpness, precision):
    rows = [m for members in bank.values() for m in members]
    evidence = gaussian(f, means, precision)
    for k, members in bank.items():
        similar = sum(share * float(f @ v) for _, v, share in members)
        evidence[k] += sharpness / (2 * len(rows)) * similar
    return z * np.exp((evidence - evidence.max()) / sharpness)


def adapt(features, text, scale, capacity=16, image_weight=0.9, sharpness=20.0, every=1):
    """Means follow every sample, the covariance every few."""
    bank, means, answers = {}, [np.array(row, float) for row in text], []
    precision = None
    for number, feature in enumerate(features, start=1):
        f, z, label, entropy, p = clip(feature, text, scale)
        bank_update(bank, capacity, label, entropy, f, p[label])
        members = bank[label]
        if any(member[1] is f for member in members):
            total = sum(share * v for _, v, share in members)
            weight = sum(share for _, _, share in members)
            means[label] = image_weight * total / weight + (1 - image_weight) * text[label]
        if number % every == 0:
            precision = adapt_precision(bank, means)
        known = precision is not None
        answers.append(adapt_answer(f, z, bank, means, sharpness, precision) if known else z)
    return np.array(answers)


def adapt_set(features, text, scale, capacity=6, image_weight=0.9, sharpness=20.0):
    bank, seen = {}, [clip(feature, text, scale) for feature in features]
    for f, _, label, entropy, p in seen:
        bank_update(bank, capacity, label, entropy, f, p[label])
    means = [np.array(row, float) for row in text]
    for k, members in bank.items():
        total = sum(share * v for _, v, share in members) + sum(p[k] * f for f, _, _, _, p in seen)
        weight = sum(share for _, _, share in members) + sum(p[k] for *_, p in seen)
        means[k] = image_weight * total / weight + (1 - image_weight) * text[k]
    precision = adapt_precision(bank, means)
    return np.array([adapt_answer(f, z, bank, means, sharpness, precision) for f, z, *_ in seen])


def dota(features, text, scale, sigma=0.002, epsilon=1e-4, eta=0.2, rho=0.005, every=1):
    classes, d = text.shape
    means = {k: np.array(text[k], float) for k in range(classes)}
    counts = dict.fromkeys(range(classes), 1.0)
    covariances = {k: sigma * np.eye(d) for k in range(classes)}
    precision, answers = np.linalg.pinv(sigma * np.eye(d)), []
    known = [means[k] for k in range(classes)]
    weight = min(rho, eta)
    for number, feature in enumerate(features, start=1):
        f, z, _, _, p = clip(feature, text, scale)
        answers.append(z + weight * gaussian(f, known, precision))
        for k in range(classes):
            gap, total = f - means[k], counts[k] + p[k]
            covariances[k] = (counts[k] * covariances[k] + p[k] * np.outer(gap, gap)) / total
            means[k] = (counts[k] * means[k] + p[k] * f) / total
            counts[k] = total
        if number % every == 0:
            overall = sum(covariances.values()) / classes
            precision = np.linalg.inv((1 - epsilon) * overall + epsilon * np.eye(d))
            known = [means[k] for k in range(classes)]
            weight = min(rho * sum(counts.values()) / classes, eta)
    return np.array(answers)


def pta(features, text, scale, time_constant=20.0, threshold=0.1, memory=0.01):
    averages, prototypes, answers = {}, {k: unit(row) for k, row in enumerate(text)}, []
    for feature in features:
        f, z, _, _, p = clip(feature, text, scale)
        for k in range(len(text)):
            if p[k] >= threshold:
                w = 1 - math.exp(-p[k] / time_constant)
                averages[k] = (1 - w) * averages.get(k, np.zeros_like(prototypes[k])) + w * f
                prototypes[k] = unit(memory * prototypes[k] + (1 - memory) * averages[k])
        answers.append([z[k] + scale * float(f @ prototypes[k]) for k in range(len(text))])
    return np.array(answers)


def nearest(x, neighbours):
    """(n, n): row i has the cosines of the nearest others of sample i, and 0 elsewhere."""
    n = len(x)
    edges = np.zeros((n, n))
    for i in range(n):
        others = sorted((j for j in range(n) if j != i), key=lambda j: -float(x[i] @ x[j]))
        for j in others[:neighbours]:
            edges[i, j] = float(x[i] @ x[j])
    return edges


def transclip(features, text, scale, rounds=10, confident=8, neighbours=3, steps=5):
    seen = [clip(feature, text, scale) for feature in features]
    x, prior = np.array([s[0] for s in seen], float), np.array([s[4] for s in seen], float)
    n, classes, d = len(x), len(text), x.shape[1]
    edges = nearest(x, neighbours)
    means = []
    for k in range(classes):
        surest = sorted(range(n), key=lambda i: -prior[i, k])[:confident]
        means.append(unit(sum(prior[i, k] * x[i] for i in surest)))
    variance, z = np.full(d, 1.0 / d), prior.copy()
    for turn in range(rounds + 1):
        likelihood = np.array([[-0.5 * ((f - m) ** 2 / variance).sum() for m in means] for f in x])
        for _ in range(steps):
            inside = likelihood + 50 / (2 * neighbours) * (edges.T @ z + edges @ z)
            inside = inside - inside.max(axis=1, keepdims=True)
            z = prior * np.exp(inside / 50)
            z = z / z.sum(axis=1, keepdims=True)
        if turn == rounds:
            return z
        means = [unit(sum(z[i, k] * x[i] for i in range(n))) for k in range(classes)]
        spread = sum(z[i, k] * (x[i] - means[k]) ** 2 for i in range(n) for k in range(classes))
        variance = spread / z.sum()
    return z


def log_density(f, mean, variance):
    return -0.5 * float(((f - mean) ** 2 / variance).sum() + np.log(variance).sum())


def stata(features, text, scale, rounds=10, anchor=1.0, neighbours=3, steps=5, weight=0.02):
    """The shares of the classes."""
    seen = [clip(feature, text, scale) for feature in features]
    x, prior = np.array([s[0] for s in seen], float), np.array([s[4] for s in seen], float)
    n, classes = len(x), len(text)
    edges = nearest(x, neighbours)
    text = np.array(text, float)
    around_text = (
        sum(prior[i, k] * (x[i] - text[k]) ** 2 for i in range(n) for k in range(classes)) / n
    )
    means, variances, z = list(text), [around_text] * classes, prior.copy()
    for turn in range(rounds + 1):
        density = np.array(
            [[log_density(f, m, v) for m, v in zip(means, variances, strict=True)] for f in x]
        )
        for _ in range(steps):
            inside = weight * density + (edges @ z + edges.T @ z) / (2 * neighbours)
            z = prior * np.exp(inside - inside.max(axis=1, keepdims=True))
            z = z / z.sum(axis=1, keepdims=True)
        if turn == rounds:
            return z
        for k in range(classes):
            n_k = sum(int(row.argmax()) == k for row in z)
            b, total = n_k / (anchor + n_k), sum(z[:, k])
            own = sum(z[i, k] * x[i] for i in range(n)) / total
            means[k] = unit(b * own + (1 - b) * text[k])
            own = sum(z[i, k] * (x[i] - means[k]) ** 2 for i in range(n)) / total
            variances[k] = b * own + (1 - b) * (around_text + (text[k] - means[k]) ** 2)
