"""SOBA+: the rotated prototypes of SOBA with the evidence behind them weighed; the default.

Ours, on the paper's queue and rotation. SOBA's fixed weight does harm where a class has few
samples, or none; here every quantity is estimated, and what is not known falls back to CLIP.
Class k is a Gaussian N(mu_k, Sigma) in image space, Sigma shared, and mu_k has a prior from its
text, g + c t_k. From the queue, with item i counted as p_i of a sample, p_i CLIP's confidence:

- S, the pooled within-class covariance; Sigma = S + eps tr(S)/d I shrinks it, up to its size;
  tr(S) is taken to be no less than the spread of the class means
- c, the slope of the class means on the text; kappa = tr(S) / vb, how many samples the text is
  worth, from the variance vb of the class means around it; m_k, the posterior mean
- score_k(f) = (f - g) A m_k - m_k A m_k / 2 + tr(A S) / (2 (n_k + kappa)), with A = Sigma^-1. The
  last term is bias correction: it gives back what a class loses on its own samples because its
  mean is known only to the precision n_k + kappa.
- one step of EM: queued items are shared out anew among the classes CLIP holds likeliest
- logits = (z + weight * score) / temperature; the weight grows with the fill of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from soba.adapt._arrays import Array, Batch, ClipScores, read_batch, softmax, to_host
from soba.adapt._evidence import LEAST_MASS, SURE, Evidence, candidate_type
from soba.adapt._schedule import Refresh
from soba.adapt._statistics import Ridge, class_statistics
from soba.adapt._temperature import matching_temperature
from soba.adapt.base import whole
from soba.adapt.card import Card
from soba.adapt.queue import EntropyQueue
from soba.adapt.queue_adapter import PrototypeAdapter
from soba.adapt.stream import TWIN_TOLERANCE
from soba.adapt.transduction import transduce

# No dataset has settings of its own; docs/soba_plus.md has what each of these is worth.
SHRINKAGE = 10.0  # eps: the queue holds sure samples only, and fewer than dimensions
TEMPER = 0.05  # one nat of the Gaussians against one of CLIP when the queue is full, as in OGA
LEAST_SPREAD = 1e-3  # of tr(S), for vb: keeps kappa finite
POWER = 0.75  # of the evidence in the weight
GAPS = 24  # refreshes within a horizon, at least
COOLED_BY = 32  # items at most
COOLING = 0.2  # power of the temperature that would keep CLIP's own calibration


class SOBAPlus(PrototypeAdapter):
    """SOBA with its evidence weighed: the default, built to do no harm.

    Parameters
    ----------
    capacity
        Samples kept per pseudo-class; None keeps all.
    refresh, total
        When the statistics refresh. By default at a fixed rate of growth, from early on.
    max_gap
        Refresh at least every so many samples, for streams that go on for long.
    horizon
        Forget samples older than this many, so that an old domain does not rule forever; None:
        never. The queue then keeps two generations of half a horizon each, and drops the older
        one when the younger is complete: between half a horizon and a whole one counts.

    Until the first refresh, and while fewer than two classes have samples or no class has
    scatter, the answer is CLIP's.

    O(C d) a sample; O(n d^2 + d^3 + C d^2) a refresh over n queued samples; C * capacity * d
    floats, twice that with a horizon.

    >>> from soba.testing import example_stream
    >>> stream, labels, text = example_stream(n=400)
    >>> adapter = SOBAPlus(text, logit_scale=20.0)
    >>> zero_shot = (stream @ text.T).argmax(axis=1)
    >>> adapted = adapter.adapt(stream).argmax(axis=1)
    >>> int((zero_shot == labels).sum()), int((adapted == labels).sum())
    (375, 389)
    """

    _young: int
    card: ClassVar[Card] = Card("soba+", title="SOBA+", colour="#0a44cc", provenance="ours")

    def __init__(
        self,
        text_features: Array,
        *,
        logit_scale: float = 100.0,
        capacity: int | None = 16,
        refresh: Refresh = "growth",
        total: int | None = None,
        max_gap: int | None = None,
        horizon: int | None = None,
    ) -> None:
        super().__init__(text_features, logit_scale=logit_scale)
        self.capacity = capacity
        self.refresh, self.total, self.max_gap = refresh, total, max_gap
        self.horizon = None if horizon is None else whole(horizon, "horizon", least=2)
        self._reset()

    def explain(self, feature: Array) -> Explanation:
        """Where the answer for one sample (d,) comes from, class by class; changes nothing."""
        batch = read_batch(feature, self.dim)
        if len(batch) != 1:
            raise ValueError(f"explain takes one sample, not {len(batch)}")
        features, logits = (np.asarray(to_host(a), np.float64) for a in self._clip_logits(batch))
        statistics, nothing = self.statistics_, np.zeros(self.n_classes)
        if statistics is None:
            probabilities = softmax(np, logits)[0]
            return Explanation(
                logits[0], nothing, nothing, nothing, nothing, 0.0, 1.0, probabilities
            )
        slope, kappa, weight = statistics["model"]
        x = features - statistics["centre"]
        direction = Ridge.restored(statistics).solve(x)[0]
        known = statistics["mass"] > LEAST_MASS
        text = self.text_features - self.text_features[known].mean(axis=0)
        from_text = weight * slope * kappa / (statistics["mass"] + kappa) * (text @ direction)
        prototype_scores = statistics["prototypes"] @ x[0]
        correction = statistics["bias"] + statistics["prototypes"] @ statistics["centre"]
        temperature = float(statistics["temperature"][0])
        total = (logits[0] + prototype_scores + correction) / temperature
        return Explanation(
            clip=logits[0],
            text=from_text,
            queue=prototype_scores - from_text,
            correction=correction,
            samples=statistics["mass"],
            text_worth=float(kappa),
            temperature=temperature,
            probabilities=softmax(np, total),
        )

    def transduce(self, features: Array, *, rounds: int = 20, out: Array | None = None) -> Array:
        """Logits (n, C) of a whole set at once, where the order means nothing; changes nothing.

        `rounds` of EM at most, fewer where nothing moves any more; 0 gives CLIP's logits. What was
        learned from streams does not enter. Features may be memory-mapped: they are read in blocks,
        once a round and once to score, and only the logits are as long as they; `out`, an array
        (n, C) that takes these, may be memory-mapped as well. :mod:`soba.adapt.transduction` has
        the formulas. O(n C d) a round, as much as three of zero-shot.

        >>> from soba.testing import example_stream
        >>> images, labels, text = example_stream(n=400)
        >>> logits = SOBAPlus(text, logit_scale=20.0).transduce(images)
        >>> zero_shot = (images @ text.T).argmax(axis=1)
        >>> int((zero_shot == labels).sum()), int((logits.argmax(axis=1) == labels).sum())
        (375, 399)
        """
        return transduce(self._scaled_text, features, rounds, out)

    def merge(self, other: Self) -> Self:
        """As for other adapters; with a horizon it raises ValueError.

        A generation is a number of arrivals, and shards have no common time: two of them cannot
        say which of their samples were the last.
        """
        if self.horizon is not None:
            raise ValueError(
                f"cannot merge adapters with a horizon ({self.horizon}): shards have no common "
                "time, so which of their samples to forget is not known; merge without a horizon"
            )
        return super().merge(other)

    def _reset(self) -> None:
        super()._reset()
        self._young = 0  # samples learned from in the younger generation

    def _learn(self, clip: ClipScores, ids: np.ndarray, rows: np.ndarray) -> None:
        if self.horizon is None:
            super()._learn(clip, ids, rows)
            return
        while len(rows):
            room = self.horizon // 2 - self._young
            super()._learn(clip, ids, rows[:room])
            self._young += len(rows[:room])
            if self._young == self.horizon // 2:  # complete: the older generation is forgotten
                self._queues = {"queue": self._empty_queue(self.capacity), "older": self.queue}
                self._young = 0
            rows = rows[room:]

    def _take_over(self, other: Self) -> None:
        super()._take_over(other)
        self._young = other._young

    def _meta(self) -> dict[str, Any]:
        return super()._meta() | {"young": self._young}

    def _restore(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        super()._restore(arrays, meta)
        self._young = whole(meta["young"], "young", least=0)
        if self._young >= (1 if self.horizon is None else self.horizon // 2):
            raise ValueError(f"young is {self._young} where the horizon is {self.horizon}")
        for queue in self._queues.values():
            options = queue.extra.view(candidate_type(self.n_classes))["class"]
            if not ((options >= 0) & (options < self.n_classes)).all():
                raise ValueError("the stored queue names classes that do not exist")

    def _try_out(self) -> Array:
        if self.explain(self.text_features[0]).temperature <= 0.0:
            raise ValueError("a temperature that is not positive")
        return super()._try_out()

    @property
    def _growth(self) -> dict[str, int | None]:
        # Early, since a wrong weight does little harm while the queue is empty; often, since in a
        # stream sorted by class the statistics know nothing of the class that comes.
        growth: dict[str, int | None] = {"first": max(16, self.n_classes // 8), "percent": 33}
        if self.horizon is not None:  # forgetting shows at a refresh
            gap = max(1, self.horizon // GAPS)
            growth["max_gap"] = gap if self.max_gap is None else min(gap, self.max_gap)
        return growth

    def _empty_queue(self, capacity: int | None) -> EntropyQueue:
        return EntropyQueue(
            self.n_classes,
            self.dim,
            capacity,
            extra_width=candidate_type(self.n_classes).itemsize,
            twin_tolerance=TWIN_TOLERANCE,
        )

    def _empty_queues(self) -> dict[str, EntropyQueue]:
        generations = ("queue",) if self.horizon is None else ("queue", "older")
        return {name: self._empty_queue(self.capacity) for name in generations}

    def _extra(self, clip: ClipScores, rows: np.ndarray) -> np.ndarray:
        """CLIP's likeliest classes for a sample, its label first, and their log-probabilities."""
        kept = np.zeros(len(rows), candidate_type(self.n_classes))
        label, confidence = clip.labels[rows], clip.confidences[rows]
        kept["class"][:, 0] = label
        kept["log_prob"][:, 0] = np.log(confidence)
        unsure = np.flatnonzero(confidence < SURE)  # the others stay where they are
        if len(unsure):
            logits = to_host(clip.logits[rows[unsure]]).astype(np.float32, copy=False)
            at, best = np.arange(len(unsure)), label[unsure]
            total = logits[at, best] - np.log(confidence[unsure]).astype(np.float32)
            for column in range(1, kept["class"].shape[1]):
                logits[at, best] = -np.inf
                best = logits.argmax(axis=1)
                kept["class"][unsure, column] = best
                kept["log_prob"][unsure, column] = logits[at, best] - total
        return kept.view(np.uint8).reshape(len(rows), -1)

    def _statistics(self) -> dict[str, np.ndarray] | None:
        queue = self.queue
        if "older" in self._queues:
            queue = self._queues["older"].copy()
            queue.merge(self.queue.items())
        labels, ranks = np.nonzero(queue.filled)
        slots = queue.slots[labels, ranks]
        candidates = queue.extra[labels, slots].view(candidate_type(self.n_classes))[:, 0]
        confidence = self._counts_as(candidates)
        by_rank = np.zeros(queue.entropies.shape)
        by_rank[labels, ranks] = confidence
        by_class = class_statistics(queue, by_rank)
        evidence = Evidence.of(by_class, labels, confidence, self.n_classes)
        freedom = evidence.freedom
        if freedom <= 0.5 or not by_class.scattered:
            return None
        trace = max(by_class.trace / freedom, evidence.apart(by_class.trace / freedom))
        ridge = Ridge(by_class, 1.0 / freedom, SHRINKAGE * trace / self.dim)
        model = self._model(evidence, ridge, trace)
        unsure = np.flatnonzero(confidence < SURE)
        if model is not None and len(unsure):
            rows = queue.features[labels[unsure], slots[unsure]]
            evidence = evidence.shared_out(
                rows, candidates[unsure], confidence[unsure], model["prototypes"], model["bias"]
            )
            model = self._model(evidence, ridge, trace)
        if model is None:
            return None
        # The least sure item of each class stands last; some dozens of them are enough.
        last = np.flatnonzero(np.append(labels[1:] != labels[:-1], True))
        last = last[:: -(-len(last) // COOLED_BY)]
        rows = queue.features[labels[last], slots[last]]
        clip = (rows @ self._scaled_text.T).astype(np.float64)
        adapted = clip + (rows @ model["prototypes"].T + model["bias"])
        temperature = matching_temperature(clip, adapted, labels[last])
        return model | ridge.arrays() | {"temperature": np.array([temperature**COOLING])}

    def _counts_as(self, candidates: np.ndarray) -> np.ndarray:
        """(n,) how much of a sample each item counts as: CLIP's confidence in its label."""
        counts: np.ndarray = np.exp(candidates["log_prob"][:, 0].astype(np.float64))
        return counts

    def _model(
        self, evidence: Evidence, ridge: Ridge, trace: float
    ) -> dict[str, np.ndarray] | None:
        """Weights and bias of every class, as added to CLIP's logits, and what they came from."""
        n, seen = evidence.mass, evidence.mass > LEAST_MASS
        if seen.sum() < 2:
            return None
        spread = evidence.sums / np.maximum(n, 1e-9)[:, None].astype(np.float32)
        centre = spread[seen].mean(axis=0, dtype=np.float64).astype(np.float32)
        spread -= centre
        spread[~seen] = 0.0
        text = self.text_features - self.text_features[seen].mean(axis=0)
        # Squared lengths and products of (mu_k - g) and t_k: all that slope and kappa need.
        lengths, along, texts = (
            np.vecdot(a, b).astype(np.float64)
            for a, b in ((spread, spread), (spread, text), (text, text))
        )
        slope = max(n[seen] @ along[seen] / max(n[seen] @ texts[seen], 1e-12), 0.0)
        error = trace * evidence.squares / np.maximum(n, 1e-9) ** 2
        around = lengths - 2.0 * slope * along + slope**2 * texts - error
        kappa = trace / max(around[seen].mean(), LEAST_SPREAD * trace)
        precision = n + kappa
        posterior = spread * (n / precision)[:, None].astype(np.float32)
        posterior += text * (kappa * slope / precision)[:, None].astype(np.float32)
        weights = ridge.solve(posterior)
        bias = 0.5 * (ridge.trace / precision - np.vecdot(weights, posterior)) - weights @ centre
        most = self.capacity or float(n.max())
        # To tell two classes apart takes evidence on both: the mean over pairs of classes of
        # sqrt(n_i n_j) / capacity, which is the square of a mean.
        evidence_in_pairs = float(np.sqrt(np.minimum(n / most, 1.0)).mean()) ** 2
        weight = TEMPER * (1.0 + SHRINKAGE) * evidence_in_pairs**POWER
        return {
            "prototypes": np.float32(weight) * weights,
            "bias": (weight * bias).astype(np.float32),
            "centre": centre,
            "mass": n,
            "model": np.array([slope, kappa, weight]),
        }

    def _score(self, batch: Batch, features: Array) -> Array:
        scores = self._linear(batch, features)
        scores += self._statistic("bias", batch)
        return scores


@dataclass(frozen=True)
class Explanation:
    """Where an answer comes from: logits = (clip + text + queue + correction) / temperature.

    All but the last three are arrays over the classes.
    """

    clip: np.ndarray  # CLIP's logits
    text: np.ndarray  # what the text adds as the prior of a class mean, in image space
    queue: np.ndarray  # what the class's own samples in the queue add
    correction: np.ndarray  # bias: the length of the mean, and how well it is known
    samples: np.ndarray  # n_k, samples behind each class, counted by CLIP's confidence in them
    text_worth: float  # kappa, how many samples the text of a class is worth
    temperature: float
    probabilities: np.ndarray

    @property
    def logits(self) -> np.ndarray:
        """What the adapter's `logits` gives."""
        summed: np.ndarray = self.clip + self.text + self.queue + self.correction
        return summed / self.temperature
