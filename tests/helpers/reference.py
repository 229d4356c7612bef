"""Slow and obvious: the methods with loops and dictionaries, one sample at a time, in float64.

Written from the papers' algorithms, sharing no code with soba/, to compare it with.
"""

from __future__ import annotations

import math

import numpy as np


def unit(v):
    v = np.asarray(v, np.float64)
    return v / np.sqrt((v * v).sum(axis=-1, keepdims=True))


def clip(feature, text, logit_scale):
    """(feature, logits, label, entropy, probabilities) of one sample; `text` has unit rows."""
    f = unit(feature).astype(text.dtype)
    z = logit_scale * (text @ f)
    p = np.exp(z - z.max())
    p = p / p.sum()
    sure = p[p > 0]
    entropy = -float((sure * np.log(sure)).sum())
    return f, z, int(z.argmax()), entropy, p


class ReferenceQueue:
    """Algorithm 2 of the paper: replace the largest entropy if the new one is smaller."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.classes = {}

    def update(self, feature, label, entropy, id_):
        items = self.classes.setdefault(label, [])
        if any(item[1] == id_ for members in self.classes.values() for item in members):
            return
        if self.capacity is None or len(items) < self.capacity:
            items.append((entropy, id_, feature))
            return
        worst = max(range(len(items)), key=lambda i: self.rank(items[i]))
        if self.rank((entropy, id_)) < self.rank(items[worst]):
            items[worst] = (entropy, id_, feature)

    @staticmethod
    def rank(item):
        """By entropy, then id; ids a stream counted itself, -1, -2, ..., come first, in turn."""
        entropy, id_ = item[:2]
        return (entropy, 0, -id_) if id_ < 0 else (entropy, 1, id_)

    def members(self):
        """{class: ids, surest first}."""
        return {k: [i[1] for i in sorted(v, key=self.rank)] for k, v in self.classes.items() if v}


def boundaries(refresh, classes, total):
    """All sample numbers up to `total` after which statistics refresh."""
    if refresh == "tenths":
        return {math.ceil(j * total / 10) for j in range(1, 11)}
    if refresh == "growth":
        numbers, at = set(), max(classes, 64)
        while at <= total:
            numbers.add(at)
            at = (11 * at + 9) // 10
        return numbers
    return set(range(refresh, total + 1, refresh))


class ReferencePrototypes:
    """NCM and SOBA, all readings and classifiers."""

    def __init__(
        self,
        text,
        logit_scale=100.0,
        capacity=16,
        alpha=15.0,
        reading="whitened",
        classifier="linear",
    ):
        self.text, self.logit_scale, self.alpha = unit(text), logit_scale, alpha
        self.reading, self.classifier = reading, classifier
        self.queue = ReferenceQueue(capacity)
        self.model = None

    def run(self, stream, refresh="tenths"):
        at = boundaries(refresh, len(self.text), len(stream))
        out = []
        for number, sample in enumerate(stream, start=1):
            f, z, label, entropy, _ = clip(sample, self.text, self.logit_scale)
            self.queue.update(f, label, entropy, number - 1)
            if number in at:
                self.refresh()
            out.append(z + self.scores(f))
        return np.array(out)

    def refresh(self):
        groups = {k: np.array([i[2] for i in v]) for k, v in self.queue.classes.items() if v}
        self.model = None
        if len(groups) < 2:
            return
        means = {k: rows.mean(axis=0) for k, rows in groups.items()}
        d = self.text.shape[1]
        cov = np.zeros((d, d))
        for k, rows in groups.items():
            for row in rows:
                cov += np.outer(row - means[k], row - means[k]) / len(rows)
        cov /= len(groups)
        n = sum(len(rows) for rows in groups.values())
        if np.trace(cov) <= 0 and self.reading in ("whitened", "gda", "literal"):
            return
        values, vectors = np.linalg.eigh(cov)
        vectors = vectors[:, np.argsort(-values)]
        values = np.sort(values)[::-1]
        for j in range(d):
            if vectors[np.abs(vectors[:, j]).argmax(), j] < 0:
                vectors[:, j] *= -1
        a = d / ((n - 1) * values + values.sum())
        precision = vectors @ np.diag(a) @ vectors.T
        g = sum(means.values()) / len(means)
        self.model = (means, vectors, precision, g)

    def scores(self, f):
        if self.model is None:
            return np.zeros(len(self.text))
        means, Q, A, g = self.model
        query, bias = f, {k: 0.0 for k in means}
        if self.reading == "whitened":
            query, hat = unit(f - g), {k: unit(A @ (m - g)) for k, m in means.items()}
        elif self.reading == "gda":
            hat = {k: A @ m for k, m in means.items()}
            bias = {k: -m @ A @ m / 2 for k, m in means.items()}
        elif self.reading == "literal":
            hat = {k: m @ Q for k, m in means.items()}
        elif self.reading == "dual":
            query, hat = f @ Q, {k: m @ Q for k, m in means.items()}
        elif self.reading == "ncm":
            hat = {k: unit(m) for k, m in means.items()}
        else:  # NCM's distances are to the means themselves
            hat = means
        seen = {}
        for k, h in hat.items():
            if self.classifier == "linear":
                seen[k] = query @ h + bias[k]
            elif self.classifier == "l1":
                seen[k] = -np.abs(query - h).sum()
            else:
                seen[k] = -np.sqrt(((query - h) ** 2).sum())
        rest = sum(seen.values()) / len(seen)
        return self.alpha * np.array([seen.get(k, rest) for k in range(len(self.text))])


class ReferenceTDA:
    """TDA with dictionaries of lists, as its official code has it; `adapt` takes one sample."""

    def __init__(self, text, logit_scale=100.0, alpha=2.0, beta=5.0, dtype=np.float64):
        self.text, self.logit_scale = unit(text).astype(dtype), logit_scale
        self.alpha, self.beta = alpha, beta
        self.positive, self.negative = {}, {}

    def adapt(self, sample):
        f, z, label, entropy, p = clip(sample, self.text, self.logit_scale)
        self.put(self.positive, label, (entropy, f), 3)
        if 0.2 < entropy / math.log2(len(self.text)) < 0.5:
            self.put(self.negative, label, (entropy, f, p), 2)
        out = z.copy()
        keys = np.array([item[1] for k in sorted(self.positive) for item in self.positive[k]])
        values = np.zeros((len(keys), len(z)), z.dtype)
        values[
            np.arange(len(keys)), [k for k in sorted(self.positive) for _ in self.positive[k]]
        ] = 1.0
        out += self.alpha * np.exp(-self.beta * (1 - keys @ f)) @ values
        if self.negative:
            items = [item for k in sorted(self.negative) for item in self.negative[k]]
            keys = np.array([item[1] for item in items])
            masks = np.array([(item[2] > 0.03) & (item[2] < 1.0) for item in items], z.dtype)
            out -= 0.117 * np.exp(-1.0 * (1 - keys @ f)) @ masks
        return out

    @staticmethod
    def put(cache, label, item, capacity):
        items = cache.setdefault(label, [])
        if len(items) < capacity:
            items.append(item)
        elif item[0] < items[-1][0]:
            items[-1] = item
        items.sort(key=lambda i: i[0])


def probabilities(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def mta_density(views, mode, bandwidths):
    return np.exp(-((views - mode) ** 2).sum(axis=1) / (2 * bandwidths**2))


def mta_bandwidths(views):
    nearest = int(0.3 * (len(views) - 1))
    squares = np.empty(len(views), views.dtype)
    for j, view in enumerate(views):
        distances = np.sqrt(((views - view) ** 2).sum(axis=1))
        others = np.sort(np.delete(distances, j))
        squares[j] = 0.5 * (others[:nearest] ** 2).mean()
    return np.sqrt(squares)


def mta(views, text, logit_scale=100.0, lambda_q=4.0, lambda_y=0.2, dtype=np.float64):
    """MTA of one image, (V, d) views: its logits."""
    views, text = unit(views).astype(dtype), unit(text).astype(dtype)
    p = probabilities(logit_scale * views @ text.T)
    affinity = p @ p.T
    bandwidths = mta_bandwidths(views)
    y = np.full(len(views), 1 / len(views), dtype)
    mode = views[0]
    for _ in range(5):
        density = mta_density(views, mode, bandwidths)
        for _ in range(5):
            before, y = y, probabilities((density + lambda_q * affinity @ y) / lambda_y)
            if np.linalg.norm(y - before) < 1e-6:
                break
        for _ in range(5):
            pull = mta_density(views, mode, bandwidths) * y
            before, mode = mode, (pull[:, None] * views).sum(axis=0) / pull.sum()
            mode = mode / np.linalg.norm(mode)
            if np.linalg.norm(mode - before) < 1e-6:
                break
    return logit_scale * text @ mode


def mta_vote(views, prompts, logit_scale=100.0):
    """The class most prompts' MTA votes for; a tie goes to the higher mean logit."""
    logits = [mta(views, text, logit_scale) for text in prompts]
    votes = [0] * len(prompts[0])
    for z in logits:
        votes[int(z.argmax())] += 1
    mean = np.mean(logits, axis=0)
    return max(range(len(votes)), key=lambda k: (votes[k], mean[k])), votes


def zero(views, text, logit_scale=100.0, keep=0.3):
    """ZERO of one image: the class, and the votes for each."""
    logits = logit_scale * unit(views) @ unit(text).T
    entropies = []
    for z in logits:
        p = probabilities(z)
        entropies.append(-sum(q * math.log(q) for q in p if q > 0))
    order = sorted(range(len(views)), key=lambda j: entropies[j])
    kept = order[: max(1, int(keep * len(views)))]
    votes = [0] * len(text)
    for j in kept:
        votes[int(logits[j].argmax())] += 1
    tied = [k for k, count in enumerate(votes) if count == max(votes)]
    if len(tied) == 1:
        return tied[0], votes
    for j in order[len(kept) :]:
        if int(logits[j].argmax()) in tied:
            return int(logits[j].argmax()), votes
    mean = np.mean([logits[j] for j in kept], axis=0)
    return max(tied, key=lambda k: mean[k]), votes
