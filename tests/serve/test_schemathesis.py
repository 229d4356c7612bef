"""Whatever the OpenAPI description allows, and what it forbids, is sent to a real server."""

import subprocess
import sys

import pytest
from served_features import CLASSES

import soba

SETTINGS = """
[warnings]
enabled = false

# Of methods that are not described, two stand for all.
[phases.coverage]
unexpected-methods = ["PATCH", "OPTIONS"]

# What an image is, or a file of soba, no schema can say: bytes that are neither are refused.
[checks.positive_data_acceptance]
enabled = false

# In a form all is text: what a schema calls an object, or a number, arrives as a valid name.
[[operations]]
include-name = ["POST /v1/streams/{name}/classify", "PUT /v1/streams/{name}/guard"]
[operations.checks.negative_data_rejection]
enabled = false
"""


@pytest.mark.parametrize("examples", [2, pytest.param(150, marks=pytest.mark.long)])
def test_the_server_does_as_it_is_described(farm, tmp_path, examples):
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    store = f"sqlite:///{tmp_path}/streams.db"
    with farm.start(store, tmp_path, "--accept-features", "--max-streams", "10000") as server:
        with soba.Client(server.url) as client:
            client.create("cats", CLASSES)
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
        options = ["--max-examples", str(examples), "--seed", "16", "--no-color"]
        more = ["--generation-database", "none", "--request-timeout", "120"]
        run = subprocess.run(
            [*command, *options, *more], cwd=tmp_path, capture_output=True, text=True
        )
        assert run.returncode == 0 and "No issues" in run.stdout, run.stdout + run.stderr
        assert server.get("/readyz") == 200
        assert "Traceback" not in server.log.read_text(errors="replace")
