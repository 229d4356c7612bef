"""What tells contents apart: never two roundings of one sample, nearly always two samples."""

import numpy as np
import pytest

from soba.serve.digests import comparable, differ, digests_of_features, digests_of_images
from soba.serve.recent_ids import digests_of, known


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("dim", [8, 24, 512, 1024])
def test_samples_are_told_apart_and_roundings_are_not(dim):
    rng = np.random.default_rng(dim)
    rows = unit(rng.normal(size=(2000, dim)))
    digests = digests_of_features(rows)
    # Half precision: the length of what is lost is what counts, whatever the dimensions.
    noise = 0.005 * unit(rng.normal(size=rows.shape))
    assert not differ(digests, digests_of_features(unit(rows + noise))).any()
    assert not differ(digests, digests_of_features(rows.astype(np.float16))).any()
    assert differ(digests[1:], digests[:-1]).all()
    close = 0.9 * rows + np.sqrt(1 - 0.9**2) * unit(rng.normal(size=rows.shape))
    assert differ(digests, digests_of_features(unit(close))).mean() > 0.99


def test_a_digest_is_of_a_row_whatever_stands_beside_it():
    rows = unit(np.random.default_rng(0).normal(size=(300, 64)))
    together = digests_of_features(rows)
    alone = np.concatenate([digests_of_features(row[None]) for row in rows])
    assert not differ(together, alone).any()


def test_images_are_told_by_every_bit_of_the_hash_that_is_kept():
    content = np.array([5, 6, 5 + (1 << 55), 5])
    digests = digests_of_images(content)
    assert differ(digests, digests[:1].repeat(4)).tolist() == [False, True, True, False]


def test_other_kinds_of_content_are_not_compared():
    images = digests_of_images(np.arange(50))
    features = digests_of_features(np.eye(50, dtype=np.float32))
    nothing = np.zeros(50, images.dtype)
    for one, other in ((images, features), (images, nothing), (nothing, features)):
        assert not comparable(one, other).any() and not differ(one, other).any()
    assert comparable(nothing, nothing).all() and not differ(nothing, nothing).any()


def test_projections_go_round():
    """255 and 0 are neighbours in all but the byte that says what the others are."""
    one, other = np.full(8, 255, np.uint8), np.zeros(8, np.uint8)
    one[0] = other[0] = 2
    both = [parts.view("<u8") for parts in (one, other)]
    assert not differ(*both).any()
    one[3] = 254
    assert differ(*both).all()


def test_digests_are_found_by_id():
    rng = np.random.default_rng(0)
    ids = rng.choice(1 << 20, 3000, replace=False)  # many share a slot of the table
    table = {int(id_): int(rng.integers(1, 1 << 62)) for id_ in ids}
    records = known(ids, np.array([table[int(id_)] for id_ in ids], np.uint64))
    wanted = np.concatenate([rng.choice(1 << 20, 2000), ids[:10], ids[:10]])
    found = digests_of(records, wanted)
    assert found.tolist() == [table.get(int(id_), 0) for id_ in wanted]
    assert digests_of(records[:0], wanted).tolist() == [0] * len(wanted)
