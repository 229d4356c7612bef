"""SOBA+ sample by sample, in float64, from the formulas of its headers."""

import numpy as np


def softmax(logits):
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def covariance(rows, R):
    """Scatter around the class means under shares R, per degree of freedom."""
    S, freedom = np.zeros((rows.shape[1], rows.shape[1])), 0.0
    for k in range(R.shape[1]):
        n = R[:, k].sum()
        if n <= 0.05:
            S += sum(R[i, k] * np.outer(rows[i], rows[i]) for i in range(len(rows)))
            continue
        mean = R[:, k] @ rows / n
        for i in range(len(rows)):
            S += R[i, k] * np.outer(rows[i] - mean, rows[i] - mean)
        freedom += n - (R[:, k] ** 2).sum() / n
    return S / freedom


def fit(rows, R, text, usual_of=np.inf):
    """The class masses, and a function rows -> scores."""
    S = covariance(rows, R)
    n, squares = R.sum(0), (R**2).sum(0)
    seen = n > 0.05
    mu = R.T @ rows / np.maximum(n, 0.05)[:, None]
    error = np.trace(S) * (squares[seen] / n[seen] ** 2).mean()
    between = ((mu[seen] - mu[seen].mean(0)) ** 2).sum(1).mean() - error
    trace = max(np.trace(S), between / 2)
    ridge = (S * S).sum() / np.trace(S) * trace / np.trace(S)
    A = np.linalg.inv(S + ridge * np.eye(len(S)))
    g, t = mu[seen].mean(0), text - text[seen].mean(0)
    D = np.where(seen[:, None], mu - g, 0.0)
    c = max((n[:, None] * D * t)[seen].sum() / (n[:, None] * t * t)[seen].sum(), 0.0)
    left = ((D - c * t) ** 2).sum(1) - trace * squares / np.maximum(n, 0.05) ** 2
    vb = (n * left)[seen].sum() / n[seen].sum()
    kappa = trace / max(vb, 1e-3 * trace)
    m = (n[:, None] * D + kappa * c * t) / (n + kappa)[:, None]
    W = m @ A
    usual = (n * np.minimum(n, usual_of)).sum() / n.sum() if np.isfinite(usual_of) else 0.0
    p = np.maximum(n, usual / 4) + kappa
    b = -(W * m).sum(1) / 2 + np.trace(A @ S) / (2 * p) - W @ g
    return n, lambda f: f @ W.T + b


def class_prior(logits):
    n, classes = logits.shape
    prior = np.full(classes, 1 / classes)
    for _ in range(10):
        counts = softmax(logits + np.log(prior)).sum(0)
        ratio = counts.var(ddof=1) / (n / classes * (1 - 1 / classes))
        alpha = 1e4
        if ratio > 1:
            alpha = np.clip((n - ratio) / (ratio - 1) / classes, 0.05, 1e4)
        prior = (counts + alpha) / (n + alpha * classes)
    return prior


def perplexity(answers):
    share = np.bincount(answers) / len(answers)
    return np.prod([p**-p for p in share if p > 0])


class Reference:
    """`queued` rows have CLIP's `labels`; `drawn` is the uniform sample; a row may be in both."""

    def __init__(self, queued, labels, drawn, text, scale, capacity=16):
        self.text, self.scale, self.drawn = text, scale, drawn
        rows = np.unique(np.concatenate([queued, drawn]), axis=0)
        n, G = self.em(rows, queued, labels, capacity)
        self.G, self.e = G, np.minimum(n / capacity, 1) ** 0.5
        self.known = np.flatnonzero(self.e >= 0.37 * self.e.max())
        z, scores = scale * drawn @ text.T, G(drawn)[:, self.known]
        self.new, self.middle = np.quantile(scores.max(1), [0.02, 0.5])
        ratio = perplexity(scores.argmax(1)) / perplexity(z[:, self.known].argmax(1))
        sure = softmax(z).max(1).mean()
        agree = (z.argmax(1) == self.known[self.G(drawn)[:, self.known].argmax(1)]).mean()
        self.spread = np.clip(ratio**12, 0.25, 8) ** np.clip((sure - agree) / 0.05, 0, 1)
        above = max(agree - sure - 0.5 * np.sqrt(sure * (1 - sure) / len(z)), 0)
        self.weight = 1.2 * min(1, ((1 - sure) / 0.3) ** 2 + 3 * above / (1 - sure))
        self.calibrate(z[:256], drawn[:256])

    def em(self, rows, queued, labels, capacity):
        classes, clip = len(self.text), self.scale * rows @ self.text.T
        in_sample = np.array([any(np.array_equal(row, f) for f in self.drawn) for row in rows])
        R = np.zeros(clip.shape)
        for row, label in zip(queued, labels, strict=True):
            i = next(i for i in range(len(rows)) if np.array_equal(rows[i], row))
            R[i, label] = softmax(clip[i])[label]
        in_queue = R.sum(1) > 0
        n, G = fit(rows[in_queue], R[in_queue], self.text)
        fill = np.minimum(n / capacity, 1)
        L = clip + 0.5 * np.sqrt(np.outer(fill, fill)).mean() ** 0.5 * G(rows)
        prior = class_prior(L[in_sample])
        perplexity = np.prod(prior**-prior)
        prior = prior ** (1 - perplexity / classes) ** 0.5  # 1, or no odds, where all are equal
        for i in range(len(rows)):
            odds, label, p = L[i] + np.log(prior), clip[i].argmax(), softmax(clip[i]).max()
            if in_sample[i]:
                R[i] = p * softmax(odds)
                continue
            odds[np.argsort(-clip[i])[4:]] = -np.inf
            free = np.clip((0.95 - p) / 0.05, 0, 1)
            R[i] = p * (free * softmax(odds) + (1 - free) * np.eye(classes)[label])
        return fit(rows, R, self.text, usual_of=capacity)

    def adapted(self, f):
        scores = self.G(f)
        best = scores[:, self.known].max(1, keepdims=True)
        s = self.weight * np.clip(best / max(self.new, 1.0), 0, 1)
        typical = (best - self.new) / max(self.middle - self.new, 1.0)
        s = s * self.spread ** np.clip(typical, 0, 1)
        against = best + self.weight**2 * np.maximum(self.new - best, 0)
        return self.scale * f @ self.text.T + s * self.e * (scores - against)

    def calibrate(self, z, drawn):
        agree = (z.argmax(1) == self.known[self.G(drawn)[:, self.known].argmax(1)]).mean()
        sure = softmax(z).max(1).mean()
        target, self.T = sure + 3 * max(agree - sure, 0), 1.0
        if softmax(self.adapted(drawn)).max(1).mean() > target:
            cool, hot = 1.0, 16.0
            for _ in range(60):  # bisection
                self.T = (cool + hot) / 2
                if softmax(self.adapted(drawn) / self.T).max(1).mean() > target:
                    cool = self.T
                else:
                    hot = self.T
        chances = softmax(self.adapted(drawn) / self.T)
        right = chances[np.arange(len(drawn)), z.argmax(1)]
        self.expected = right.mean(), chances.max(1).mean()

    def logits(self, f):
        return self.adapted(f) / self.T
