"""What deploy/ and docs/serve.md say of the server is so; no container engine is needed."""

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
import typer
import yaml
from conftest import ROOT
from PIL import Image
from served_features import CLASSES

import soba
from soba.cli import app

DEPLOY = ROOT / "deploy"


def options():
    """Variable -> option of `soba serve`."""
    command = typer.main.get_command(app).commands["serve"]
    return {option.envvar: option for option in command.params if option.envvar}


def load(name):
    return yaml.safe_load((DEPLOY / name).read_text())


def instructions():
    """(word, rest) of each line of the Dockerfile, joined lines as one."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.split(maxsplit=1) for line in lines]


@pytest.fixture(scope="module")
def server(farm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed")
    with farm.start(f"sqlite:///{folder}/streams.db", folder, "--accept-features") as server:
        yield server


def test_the_variables_are_those_of_the_server():
    known = options().keys()
    for name in ("Dockerfile", "compose.yaml"):
        used = set(re.findall(r"SOBA_[A-Z_]+", (DEPLOY / name).read_text()))
        assert used and used <= known, used - known


def test_the_image_is_built_of_what_is_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text()
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists() and f"!{source.removeprefix('./')}" in ignored
        if word == "ARG":
            assert rest.partition("=")[2] in extras["optional-dependencies"]
    assert ["USER", "soba"] in instructions()
    assert ["STOPSIGNAL", "SIGTERM"] in instructions()
    [entry] = [rest for word, rest in instructions() if word == "ENTRYPOINT"]
    assert json.loads(entry) == ["soba", "serve"]


def test_the_health_check_tells_a_server_that_lives_from_one_that_does_not(server):
    [check] = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    _, code, program = json.loads(check.partition("CMD ")[2])
    program = program.replace("timeout=2", "timeout=60")  # a busy machine fails no test
    for port, healthy in ((server.port, True), (1, False)):
        run = subprocess.run(
            [sys.executable, code, program],
            env=os.environ | {"SOBA_PORT": str(port)},
            capture_output=True,
        )
        assert (run.returncode == 0) == healthy


def test_the_services_are_whole():
    compose = load("compose.yaml")
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert set(service.get("secrets", [])) <= compose["secrets"].keys()
        assert set(service.get("depends_on", {})) <= compose["services"].keys()
        assert "healthcheck" in service or name.startswith("soba")  # whose image has one
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            there = (
                (DEPLOY / source).is_file() if source[0] == "." else source in compose["volumes"]
            )
            assert there, volume
    hosts = compose["services"]["soba-1"]["environment"]["SOBA_ALLOW_HOST"].split()
    [job] = load("prometheus.yml")["scrape_configs"]
    targets = job["static_configs"][0]["targets"]
    assert [target.partition(":")[0] for target in targets] == hosts
    assert set(hosts) <= compose["services"].keys()
    assert load("prometheus.yml")["rule_files"] == ["alerts.yml"]


def test_the_metrics_in_rules_and_docs_are_there(server):
    with soba.Client(server.url) as client:
        stream = client.create("cats", CLASSES)
        image = next((ROOT / "docs").glob("*.png"))
        stream.set_guard({"cat": image})
        list(stream.classify(image))
        text = client.call("GET", "/metrics").decode()
    known = set(re.findall(r"^# TYPE (soba_\w+)", text, re.MULTILINE))
    rules = [rule for group in load("alerts.yml")["groups"] for rule in group["rules"]]
    asked = set(re.findall(r"soba_\w+", " ".join(rule["expr"] for rule in rules)))
    assert asked and asked <= known
    for rule in rules:
        for name, labels in re.findall(r"(soba_\w+)\{(\w+)=", rule["expr"]):
            assert re.search(rf"^{name}\{{.*\b{labels}=", text, re.MULTILINE), rule["alert"]
    section = (ROOT / "docs" / "serve.md").read_text().split("## Metrics")[1].split("## ")[0]
    assert set(re.findall(r"`(soba_\w+)", section)) == known


def test_the_documented_options_are_all_there_are():
    section = (ROOT / "docs" / "serve.md").read_text().split("## Options")[1].split("## ")[0]
    rows = re.findall(r"^\| `(--[\w-]+)` \| `(\w+)` \| (.*?) \|", section, re.MULTILINE)
    assert {variable: option for option, variable, _ in rows} == {
        variable: option.opts[0] for variable, option in options().items()
    }
    for _, variable, default in rows:
        value = options()[variable].default
        said = {None: "", False: "off"}.get(value, f"`{value}`") if value != [] else ""
        assert default == said, variable


def test_the_documented_example_runs(server, tmp_path, monkeypatch):
    text = (ROOT / "docs" / "serve.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    folders = ["photos", *(f"guard/{name}" for name in ("cat", "dog", "fox"))]
    for shade, name in enumerate([*(f"{folder}/1.jpg" for folder in folders), "new.jpg"]):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (50 * shade, 0, 0)).save(path)
    monkeypatch.chdir(tmp_path)
    said = {}
    exec(code.replace("http://127.0.0.1:8000", server.url).replace('"cats"', '"example"'), said)
    said["client"].close()
    assert soba.load(tmp_path / "cats.safetensors").names == ("cat", "dog", "fox")
