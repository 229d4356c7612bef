"""Does adapting help here? An answer from a few labelled images, or none where they are too few.

SOBA+ sees all images without labels; then it and zero-shot answer all of them. Where both say the
same nothing can be gained or lost, so the images that they answer differently decide, and how many
those are is known without any label. Of them a labelled one is won (adapted is right), lost
(zero-shot is) or neither. The verdict is an exact sign test, one-sided at 5% in either direction,
among the images there are: the null is that no more of them are won than lost.

It holds where labelled images were picked without a look at the answers, and where they were picked
by chance among those answered differently: the two kinds of images are never pooled, so that
labels of the second kind bias nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from soba.adapt.base import Adapter
from soba.adapt.soba_plus import ExpectedAccuracy, SOBAPlus
from soba.feature_set import FeatureSet
from soba.registry import create_adapter

LEVEL = 0.05  # how often a verdict may be wrong
POWER = 0.8  # how likely the images that are asked for are to bring a verdict
INTERVAL = 0.90  # leaves out LEVEL on either side, as the test does
_DRAWS, _TRIALS = 4000, 400  # of what the other images may be
_JEFFREYS = 0.5  # prior count of each outcome
_BLOCK = 8192  # rows that are learned from, and scored, at a time

# (expected - true) accuracy in points, the lowest and the highest of the sets in the table of
# docs/soba_plus.md; a test reads them there.
KNOWN_ERROR_ZERO_SHOT = (-3.3, 48.0)
KNOWN_ERROR_ADAPTED = (-10.8, 52.3)
KNOWN_ERROR_SETS, KNOWN_ERROR_WRONG_SIGN = 17, 1


@dataclass(frozen=True)
class Answers:
    """What both say of all images, as class indices."""

    zero_shot: np.ndarray  # (n,)
    adapted: np.ndarray  # (n,)
    expected: ExpectedAccuracy | None  # without labels; None where nothing was learned

    @property
    def learned(self) -> bool:
        """Whether there was enough to learn anything from."""
        return self.expected is not None

    @property
    def differ(self) -> np.ndarray:
        """(n,) bool: the images that decide."""
        differ: np.ndarray = self.zero_shot != self.adapted
        return differ


@dataclass(frozen=True)
class Tally:
    """All images by what is known of them."""

    alike: int  # answered alike
    alike_right: int  # labelled, and both right
    alike_wrong: int
    differ: int  # answered differently
    won: int  # labelled, and adapted is right
    lost: int  # labelled, and zero-shot is
    neither: int

    @property
    def images(self) -> int:
        return self.alike + self.differ

    @property
    def alike_labelled(self) -> int:
        return self.alike_right + self.alike_wrong

    @property
    def differ_labelled(self) -> int:
        return self.won + self.lost + self.neither

    @property
    def labelled(self) -> int:
        return self.alike_labelled + self.differ_labelled

    @property
    def open(self) -> int:
        """Images answered differently that nobody has labelled."""
        return self.differ - self.differ_labelled

    @property
    def at_stake(self) -> float:
        """Points of top-1 that adapting could gain or lose at most."""
        return 100.0 * self.differ / max(self.images, 1)


@dataclass(frozen=True)
class Range:
    """An estimate in points, and the interval that the truth is in with a chance of INTERVAL."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Checked:
    """What came of it; `verdict` is "yes", "no" or "too few to tell"."""

    tally: Tally
    verdict: str
    p_gain: float  # of the sign test: how likely so many wins are if adapting did not help
    p_harm: float
    gain: Range
    zero_shot: Range | None  # None: no label says how often both are right where they agree
    adapted: Range | None
    more: int  # images to label besides, of those answered differently; 0 if that brings nothing

    @property
    def gain_is_known(self) -> bool:
        """Whether any label tells of it: without one it is anything that is at stake."""
        return self.tally.differ_labelled > 0 or self.tally.differ == 0


def answer_all(features: FeatureSet, *, transductive: bool = False) -> Answers:
    """Let SOBA+ learn from all images, in one pass and without labels, then answer them.

    The order of a set means nothing, and often it is by class: SOBA+ learns in an order by chance,
    and its statistics are made at the end. With `transductive` all are answered at once instead.
    """
    text, scale = features.text_features, features.logit_scale
    rows = features.image_features
    if not len(rows):
        raise ValueError(f"{features.source or 'the set'}: holds no images")
    adapter = SOBAPlus(text, logit_scale=scale)
    plain = create_adapter("zero-shot", text, logit_scale=scale)
    # In blocks: features may lie in a file, and their logits would take more room than they do.
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(rows), _BLOCK)]
    order = np.random.default_rng(0).permutation(len(rows))
    for block in blocks:
        adapter.learn(rows[order[block]], ids=order[block])
    adapter.refresh()
    if transductive:
        adapted = np.asarray(adapter.transduce(rows)).argmax(axis=1)
    else:
        adapted = _answers(adapter, rows, blocks)
    return Answers(_answers(plain, rows, blocks), adapted, adapter.expected_accuracy())


def _answers(adapter: Adapter, rows: np.ndarray, blocks: list[slice]) -> np.ndarray:
    answers = [np.asarray(adapter.logits(rows[block])).argmax(axis=1) for block in blocks]
    return np.concatenate(answers)


def tally(answers: Answers, labels: np.ndarray) -> Tally:
    """Count images; `labels` (n,) are class indices, -1 where nobody has labelled."""
    known, differ = labels >= 0, answers.differ
    by_clip, by_us = (known & (labels == said) for said in (answers.zero_shot, answers.adapted))
    return Tally(
        alike=int((~differ).sum()),
        alike_right=int((~differ & by_clip).sum()),
        alike_wrong=int((~differ & known & ~by_clip).sum()),
        differ=int(differ.sum()),
        won=int((differ & by_us).sum()),
        lost=int((differ & by_clip).sum()),
        neither=int((differ & known & ~by_us & ~by_clip).sum()),
    )


def check(counts: Tally, *, learned: bool = True) -> Checked:
    """The verdict, the estimates, and how many more labels it takes where there is none.

    `learned` is whether the images were enough to learn anything from: if not, both answer alike
    for want of images, and no number of labels tells.
    """
    p_gain, p_harm = _p_values(counts.won, counts.lost, counts.differ - counts.neither)
    verdict = _verdict(counts.won, counts.lost, counts.open, p_gain, p_harm)
    if not learned:
        verdict = "too few to tell"
    gain, zero_shot, adapted = _ranges(counts)
    more = _more(counts) if learned and verdict == "too few to tell" else 0
    return Checked(counts, verdict, p_gain, p_harm, gain, zero_shot, adapted, more)


def sign_test(won: int, lost: int, most: int) -> float:
    """How likely so many wins are among the labelled if no more of all images are won than lost.

    `most` is how many images may be won or lost in all, labelled ones included. Exact: labelled
    images are drawn from these without replacement, and of all populations that do not gain the one
    with the largest probability counts: 1 where no more labelled images are won than lost. With
    `most` far above the labels it is the usual sign test.

    Examples
    --------
    >>> round(sign_test(5, 0, 10**6), 4), sign_test(3, 2, 5), sign_test(2, 2, 4)
    (0.0312, 0.0, 1.0)
    """
    labelled = won + lost
    if labelled > most:
        raise ValueError(f"{labelled} images are won or lost, where {most} can be")
    if won <= lost:  # as where nobody has labelled any other
        return 1.0
    # Half of an even number won is the null that is hardest to refute; of an odd one it may be the
    # largest even number below.
    sizes = {most, most - 1} if most - 1 >= labelled else {most}
    return max(_tail(won, labelled, size) for size in sizes)


@lru_cache(1 << 16)
def _tail(won: int, labelled: int, size: int) -> float:
    """P(at least `won` wins among so many drawn from `size` images, half of which are wins)."""
    wins = size // 2
    if won <= max(0, labelled - (size - wins)):
        return 1.0
    if won > wins:
        return 0.0
    count = np.arange(won, min(labelled, wins) + 1)
    logs = (
        _log_choose(wins, count)
        + _log_choose(size - wins, labelled - count)
        - _log_choose(size, np.array([labelled]))
    )
    return min(1.0, float(np.exp(logs).sum()))


def _log_choose(n: int, k: np.ndarray) -> np.ndarray:
    table = _log_factorials(1 << max(n, 1).bit_length())
    logs: np.ndarray = table[n] - table[k] - table[n - k]
    return np.where(k <= n, logs, -np.inf)


@cache
def _log_factorials(size: int) -> np.ndarray:
    """log n! of 0 to size - 1."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size)))])


def _p_values(won: int, lost: int, most: int) -> tuple[float, float]:
    return sign_test(won, lost, most), sign_test(lost, won, most)


def _verdict(won: int, lost: int, still_open: int, p_gain: float, p_harm: float) -> str:
    if still_open == 0:  # nothing is left to chance: also where no answer differs
        return "yes" if won > lost else "no"
    if p_gain <= LEVEL:
        return "yes"
    return "no" if p_harm <= LEVEL else "too few to tell"


def _ranges(counts: Tally) -> tuple[Range, Range | None, Range | None]:
    """Gain, and the accuracies of zero-shot and adapted: each kind of image by its own labels.

    The images without a label are drawn from what the labelled ones leave open, under Jeffreys'
    prior; so the interval is a point where all are labelled.
    """
    rng = np.random.default_rng(0)
    won, lost = _all_outcomes(counts, rng, _DRAWS)[:2] * (100.0 / max(counts.images, 1))
    labelled = max(counts.differ_labelled, 1)
    of_won, of_lost = (counts.at_stake * n / labelled for n in (counts.won, counts.lost))
    gain = Range(0.0, -counts.at_stake, counts.at_stake)
    if counts.differ_labelled or not counts.differ:
        gain = _range(of_won - of_lost, won - lost)
    if counts.alike and not counts.alike_labelled:
        return gain, None, None
    prior = (counts.alike_right + _JEFFREYS, counts.alike_wrong + _JEFFREYS)
    share = rng.beta(*prior, _DRAWS)
    rest = rng.binomial(counts.alike - counts.alike_labelled, share)
    both = (counts.alike_right + rest) * (100.0 / max(counts.images, 1))
    right = counts.alike_right / max(counts.alike_labelled, 1)
    of_both = right * (100.0 - counts.at_stake)
    if counts.differ and not counts.differ_labelled:  # in between, for want of anything better
        of_won = of_lost = counts.at_stake / 3.0
    return gain, _range(of_both + of_lost, both + lost), _range(of_both + of_won, both + won)


def _range(estimate: float, draws: np.ndarray) -> Range:
    tail = (1.0 - INTERVAL) / 2.0
    low, high = np.quantile(draws, (tail, 1.0 - tail))
    return Range(estimate, min(float(low), estimate), max(float(high), estimate))


def _all_outcomes(counts: Tally, rng: np.random.Generator, draws: int) -> np.ndarray:
    """(3, draws): images won, lost and neither among all that are answered differently."""
    labelled = np.array([counts.won, counts.lost, counts.neither])
    chances = rng.dirichlet(labelled + _JEFFREYS, draws)
    outcomes: np.ndarray = labelled[:, None] + rng.multinomial(counts.open, chances).T
    return outcomes


def _more(counts: Tally) -> int:
    """How many more images answered differently bring a verdict with a chance of POWER.

    By trials: what the others are is drawn from what the labels leave open, some of them are
    labelled, and the test is made. To label all of them always brings one.
    """
    rng = np.random.default_rng(0)
    known = np.array([counts.won, counts.lost, counts.neither])
    unlabelled = _all_outcomes(counts, rng, _TRIALS) - known[:, None]
    low, high = 0, 1
    while high < counts.open and _decided(counts, unlabelled, high, rng) < POWER:
        low, high = high, min(2 * high, counts.open)
    while high - low > 1:
        middle = (low + high) // 2
        if _decided(counts, unlabelled, middle, rng) >= POWER:
            high = middle
        else:
            low = middle
    return high


def _decided(counts: Tally, unlabelled: np.ndarray, more: int, rng: np.random.Generator) -> float:
    """The share of trials that end in a verdict once so many more images are labelled."""
    won, lost, neither = unlabelled
    new_won = rng.hypergeometric(won, lost + neither, more)
    new_lost = rng.hypergeometric(lost, neither, more - new_won)
    totals = zip(
        (counts.won + new_won).tolist(),
        (counts.lost + new_lost).tolist(),
        (counts.neither + more - new_won - new_lost).tolist(),
        strict=True,
    )
    verdicts = [
        _verdict(w, z, counts.open - more, *_p_values(w, z, counts.differ - n))
        for w, z, n in totals
    ]
    return 1.0 - verdicts.count("too few to tell") / len(verdicts)


def images_to_label(
    answers: Answers, labels: np.ndarray, count: int, *, seed: int = 0
) -> np.ndarray:
    """Rows of images that would tell most: answered differently, not labelled yet.

    By chance among these. The ones that either is surest of would make the test say what it is not.
    """
    rows = np.flatnonzero(answers.differ & (labels < 0))
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows[order[:count]]


def few_per_class(labels: np.ndarray, per_class: int, *, seed: int = 0) -> np.ndarray:
    """`labels` with so many of each class kept, drawn by chance; -1 elsewhere.

    Examples
    --------
    >>> few_per_class(np.array([0, 1, 0, 1, 1]), 1).tolist().count(-1)
    3
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    kept = np.full(len(labels), -1, np.int64)
    for label in np.unique(labels[labels >= 0]):
        rows = order[labels[order] == label][:per_class]
        kept[rows] = label
    return kept
