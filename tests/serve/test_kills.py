"""kill -9 at random moments: nothing acknowledged is lost, and nothing is learned twice."""

import numpy as np
import pytest
from stream_workers import kill_often
from streams import SAMPLES, assert_equal_bits, assert_learned, classifier

import soba


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.long)])
def test_killed_at_random_moments(url, workers, kills):
    rows = range(25 * kills)
    kill_often(workers, url, rows, kills, np.random.default_rng(kills))
    with soba.DurableStream(url, "cats", classifier()) as stream:
        assert_learned(stream.to_classifier().adapter, rows)
        assert len(stream.snapshots()) > 1  # the log was compacted on the way


@pytest.mark.parametrize("samples", [200, pytest.param(SAMPLES, marks=pytest.mark.long)])
def test_three_processes_on_one_database(url, workers, samples):
    rng = np.random.default_rng(samples)
    watching = soba.DurableStream(url, "cats", classifier())  # from the first entry on
    shares = np.array_split(rng.permutation(samples), 3)
    left = [set(share.tolist()) for share in shares]
    jobs = [workers.start(url, sorted(share)) for share in left]
    kills = sorted(rng.integers(0, 9 * samples // 10, samples // 50).tolist())  # after so many
    while any(left):
        for who, job in enumerate(jobs):
            acknowledged = workers.acknowledged(job)
            if acknowledged is None and left[who]:
                jobs[who] = workers.start(url, sorted(left[who]))
            left[who] -= set(acknowledged or [])
        if kills and samples - sum(map(len, left)) >= kills[0]:
            kills.pop(0)
            victim = rng.choice([who for who in range(3) if left[who]])
            left[victim] -= set(workers.kill(jobs[victim]))
    assert len(kills) <= samples // 100  # half at least: a test that is held up may find all done
    watching.sync()
    late = soba.DurableStream(url, "cats")  # by a snapshot and the log since
    assert watching.version == late.version
    assert_equal_bits(*(stream.to_classifier().adapter for stream in (watching, late)))
    assert_learned(late.to_classifier().adapter, range(samples))
    watching.close()
    late.close()
