"""What the tests of runs in shards share."""

import pytest
from runs import make_run

from soba.encode.encoder import load_encoder


@pytest.fixture(scope="session")
def tiny():
    return load_encoder("tiny", threads=1)


@pytest.fixture(scope="session")
def lake_run(tmp_path_factory, tiny):
    """A run of seven shards with all their features; not to be written to."""
    return make_run(tmp_path_factory.mktemp("lake"), tiny, (60, 35, 1, 80, 17, 50, 33))
