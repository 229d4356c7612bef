"""Whatever the OpenAPI description allows, and what it forbids, sent to a real server."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from served_features import CLASSES

import soba

LONG = os.environ.get("SOBA_LONG") == "1"
EXAMPLES = 200 if LONG else 8


@pytest.fixture(scope="module")
def described(farm, tmp_path_factory):
    """The description of a server that has a stream."""
    folder = tmp_path_factory.mktemp("described")
    with farm.start(f"sqlite:///{folder}/streams.db", folder, "--accept-features") as server:
        with soba.Client(server.url) as client:
            client.create("cats", CLASSES)
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("described")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
def test_the_server_does_as_it_is_described(case):
    case.call_and_validate()
