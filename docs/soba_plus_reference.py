"""SOBA+ by loops over images and classes, in float64: slow and obvious, to read and to test with.

    logits = adapt(images, text, scale)        a stream, of no more images than the sample keeps
    logits = transduce(images, text, scale)    a whole set

Images (n, d) and text (C, d) are unit rows. It shares no code with `soba`; the names and formulas
are those of docs/soba_plus.md. `tests/adapt/test_soba_plus_reference.py` compares the two.
"""

import math

import numpy as np

WEIGHT, ROUNDS, TELLING, GROWTH, COPY_COSINE = 2.0, 3, 0.25, 25, 0.99


def softmax(row):
    powers = [math.exp(value - max(row)) for value in row]
    return np.array([power / sum(powers) for power in powers])


def entropy(p):
    return -sum(x * math.log(x) for x in p if x > 0)


class Clip:
    """What CLIP says of an image: logits z, probabilities p, doubt H, sureness 1 - H / log C."""

    def __init__(self, image, text, scale):
        self.z = np.array([scale * float(image @ row) for row in text])
        self.p = softmax(self.z)
        self.doubt = entropy(self.p)
        self.sureness = max(1 - self.doubt / math.log(len(text)), 0.0)


def adapt(images, text, scale):
    """Each image is learned, and then answered by the model of the last refresh."""
    clips = [Clip(image, text, scale) for image in images]
    logits, model, due = [], None, max(16, len(text) // 2)
    for i in range(len(images)):
        if i + 1 == due:
            seen, clipped, weights = images[:due], clips[:due], copy_weights(images[:due])
            model, log_pi = fit(seen, clipped, text, weights)
            model["prior"] = belief_in_stream(clipped, weights) * log_pi
            model["a"] = overconfidence(model, model, seen[:512], clipped, weights)
            due += math.ceil(due * GROWTH / 100)
        logits.append(clips[i].z if model is None else answer(model, images[i], clips[i]))
    return np.array(logits)


def transduce(images, text, scale):
    clips = [Clip(image, text, scale) for image in images]
    ones = [1.0] * len(images)
    model, log_pi = fit(images, clips, text, ones)
    model["prior"] = model["h"] * log_pi
    # A set is read once a round, so how overconfident CLIP is was asked of the model before.
    model["a"] = overconfidence(model["before"], model, images, clips, ones)
    rivals = model["prior"] - max(model["prior"])
    return np.array([answer(model, *pair, rivals) for pair in zip(images, clips, strict=True)])


def copy_weights(images):
    """Near-copies share one weight."""
    return [1 / sum(float(a @ b) >= COPY_COSINE for b in images) for a in images]


def log_prior(shares, clips, weights):
    """log(C pi): shares of the classes among what CLIP is sure of, and one image more for each."""
    C = len(shares[0])
    counts = np.ones(C)
    for r, clip, weight in zip(shares, clips, weights, strict=True):
        counts += weight * clip.sureness * r
    return np.log(C * counts / sum(counts))


def belief(gain, sureness):
    """h: nats gained over "all classes alike", times how sure CLIP is."""
    return min(max(gain * sureness / TELLING, 0.0), 1.0)


def mean_sureness(clips, weights):
    return sum(w * clip.sureness for w, clip in zip(weights, clips, strict=True)) / sum(weights)


def belief_of_set(clips, weights):
    """How well the prior describes each image, by the others (to first order in its own count)."""
    log_pi = log_prior([clip.p for clip in clips], clips, weights)
    counts = np.ones(len(log_pi))
    for clip, weight in zip(clips, weights, strict=True):
        counts += weight * clip.sureness * clip.p
    gain = 0.0
    for clip, weight in zip(clips, weights, strict=True):
        own = weight * clip.sureness * clip.p
        gain += float(own @ (log_pi - own / counts))
    return belief(gain / sum(weights), mean_sureness(clips, weights))


def belief_in_stream(clips, weights):
    """How well the prior predicted each block of the stream from the blocks before it."""
    C, n = len(clips[0].p), len(clips)
    edge, gain, images = max(16, C // 2), 0.0, 0.0
    while edge < n:
        end = min(edge + edge * GROWTH // 100 + 1, n)
        log_pi = log_prior([clip.p for clip in clips[:edge]], clips[:edge], weights[:edge])
        for clip, weight in zip(clips[edge:end], weights[edge:end], strict=True):
            gain += weight * clip.sureness * float(clip.p @ log_pi)
            images += weight
        edge = end
    return belief(gain / images, mean_sureness(clips, weights)) if images else 0.0


def fit(images, clips, text, weights):
    """EM: the M step on CLIP's shares, then E and M in turn. The model, and log(C pi)."""
    shares, h, model = [clip.p for clip in clips], belief_of_set(clips, weights), None
    log_pi = log_prior(shares, clips, weights)
    for _ in range(ROUNDS):
        if model is not None:
            model["prior"] = h * log_pi  # EM looks back: pi counts as far as it describes
            shares = [softmax(in_em(model, *pair)) for pair in zip(images, clips, strict=True)]
        before, model = model, gaussians(images, shares, text, weights)
        log_pi = log_prior(shares, clips, weights)
    return model | {"before": before, "h": h}, log_pi


def gaussians(images, shares, text, weights):
    """N(mu_k, S) for each class k, from images that are shared out among the classes."""
    d, C = images.shape[1], len(text)
    mass = np.zeros(C)
    sums, squares = np.zeros((C, d)), np.zeros(C)
    for image, r, weight in zip(images, shares, weights, strict=True):
        mass += weight * r
        squares += weight * r**2
        sums += weight * np.outer(r, image)
    mass = np.maximum(mass, 1e-9)
    mu = sums / mass[:, None]

    S = np.zeros((d, d))  # the covariance within classes; each mean takes a degree of freedom
    for image, r, weight in zip(images, shares, weights, strict=True):
        for k in range(C):
            S += weight * r[k] * np.outer(image - mu[k], image - mu[k])
    spent = squares / mass
    S /= sum(mass) - sum(spent)
    A = np.linalg.inv(S + np.trace(S @ S) / np.trace(S) * np.eye(d))
    D = np.trace(A @ S)

    # Means shrink to g + slope t_k by empirical Bayes: a text is worth kappa images.
    g = sum(mass[k] * mu[k] for k in range(C)) / sum(mass)
    t = text - sum(mass[k] * text[k] for k in range(C)) / sum(mass)
    slope = sum(mass[k] * (mu[k] - g) @ t[k] for k in range(C))
    slope = max(slope / sum(mass[k] * t[k] @ t[k] for k in range(C)), 0.0)
    unexplained = 0.0
    for k in range(C):
        rest = mu[k] - g - slope * t[k]
        unexplained += (mass[k] * rest @ rest - np.trace(S) * spent[k]) / sum(mass)
    kappa = np.trace(S) / max(unexplained, 1e-3 * np.trace(S))
    known = mass + kappa
    m = [(mass[k] * (mu[k] - g) + kappa * slope * t[k]) / known[k] for k in range(C)]
    return {
        "A": A,
        "D": D,
        "g": g,
        "m": m,
        "known": known,
        "mass": mass,
        "e": mass / (mass + 2 * D),
    }


def scores(model, image):
    """G_k: the log-density of the image under class k, up to a constant of the image."""
    A, g, D = model["A"], model["g"], model["D"]
    return np.array(
        [
            (image - g) @ A @ m - m @ A @ m / 2 + D / (2 * known)
            for m, known in zip(model["m"], model["known"], strict=True)
        ]
    )


def log_share(G, rivals):
    """log q: classes that hardly come are no rivals of the others, by their log weights."""
    return G - max(G) - math.log(sum(np.exp(G - max(G) + rivals)))


def in_em(model, image, clip):
    """The logits of the E step: a mean that is known badly makes a wide predictive density."""
    G = scores(model, image) - model["D"] / 2 * np.log(1 + 1 / model["known"])
    log_q = log_share(G, model["prior"] - max(model["prior"]))
    return clip.z + clip.doubt * (model["e"] * log_q + model["prior"])


def overconfidence(model, final, images, clips, weights):
    """How much more often two draws from p agree than one from p and one from the model."""
    alike = other = 0.0
    for image, clip, weight in zip(images, clips, weights, strict=False):
        told = softmax(scores(model, image) + model["prior"])
        alike += weight * float(clip.p @ clip.p)
        other += weight * float(clip.p @ told)
    e = average_evidence(final)
    return max(alike / (e * other + (1 - e) * alike), 1.0)


def average_evidence(model):
    return sum(model["mass"] * model["e"]) / sum(model["mass"])


def answer(model, image, clip, rivals=0.0):
    w = WEIGHT * model["a"] * clip.doubt
    told = model["e"] * log_share(scores(model, image), rivals)
    return (clip.z + w * (told + model["prior"])) / (1 + w * average_evidence(model))
