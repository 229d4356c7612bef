"""What is released: wheel and sdist have what they should, and the wheel runs by itself."""

import datetime
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest
import yaml
from conftest import ROOT

import soba

DATA = [
    "adapt/tda.csv",
    "adapt/tip_adapter.csv",
    "bench/paper.csv",
    "datasets/NOTICE-icons.md",
    "datasets/data/catalogue.csv",
    "datasets/data/class_names.json",
    "encode/templates.json",
    "py.typed",
    "serve/page/index.html",
    "serve/page/page.css",
    "serve/page/page.js",
    "tiny/image.onnx",
    "tiny/open_clip_config.json",
    "tiny/open_clip_model.safetensors",
    "tiny/text.onnx",
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and sdist, built without a network by the hatchling that is here."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def committed(folder):
    """The files below a folder that git knows; all that there are where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0 and listed.stdout:
        return {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_wheel_has_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"soba_tta-{soba.__version__}.dist-info/METADATA").decode()
    inside = {name for name in names if ".dist-info/" not in name}
    assert {f"soba/{name}" for name in DATA} <= inside
    assert committed("soba") <= inside
    assert all(name.startswith("soba/") for name in inside)
    assert f"Version: {soba.__version__}\n" in metadata
    assert "License-Expression: MIT\n" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_can_be_tested(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = ["mkdocs.yml", "CITATION.cff", "CHANGELOG.md", "README.md", "Makefile", ".ci/run"]
    assert {*wanted, ".github/workflows/release.yml", "docs/index.md"} <= names
    for folder in ("soba", "tests", "docs", "perf", "training", "deploy"):
        assert committed(folder) <= names


def test_the_documented_sizes_are_those(built):
    said = dict(re.findall(r"^\| `(\S+)` \| (\S+) MB \|", page("release.md"), re.MULTILINE))
    for path in built:
        # Compression differs a little from machine to machine.
        assert path.stat().st_size / 1e6 == pytest.approx(float(said[path.name]), rel=0.05)
    [wheel] = re.findall(r"The wheel has (\S+) MB", page("guide.md"))
    assert wheel == said[built[0].name]


def page(name):
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_citation_is_whole_and_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "message", "authors"} <= set(citation)  # what the format demands
    assert citation["type"] == "software" and citation["license"] == "MIT"
    assert str(citation["version"]) == soba.__version__
    date = datetime.date.fromisoformat(citation["date-released"])
    [paper] = citation["references"]
    assert {"type", "title", "authors"} <= set(paper) and "2502.19946" in paper["url"]
    for author in [*citation["authors"], *paper["authors"]]:
        assert "name" in author or {"given-names", "family-names"} <= set(author)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {soba.__version__} - {date}" in changes


def test_only_the_job_that_publishes_can_ask_for_an_identity():
    folder = ROOT / ".github" / "workflows"
    workflows = {path.stem: yaml.safe_load(path.read_text()) for path in folder.glob("*.yml")}
    assert set(workflows) == {"ci", "release"}
    release = workflows["release"]
    assert release["permissions"] == {}
    assert release["jobs"]["build"]["permissions"] == {"contents": "read"}
    publish = release["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build" and "release" in publish["if"]
    steps = [step.get("uses", "").split("@")[0] for step in publish["steps"]]
    assert steps == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert publish["steps"][1]["with"] == {"attestations": True}
    assert workflows["ci"]["jobs"]["test"]["steps"][-1]["run"] == "bash .ci/run"


@pytest.mark.long
def test_the_wheel_runs_in_an_empty_environment(built, tmp_path):
    """Downloads what it needs."""
    venv.create(tmp_path / "empty", with_pip=True)
    program = tmp_path / "empty" / "bin"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(program / "pip", "install", "--quiet", f"{built[0]}[demo]")
    assert soba.__version__ in run(program / "soba", "--version")
    where = "import soba; print(soba.__file__)"
    assert str(tmp_path) in run(program / "python", "-c", where)
    printed = run(program / "soba", "demo", "--per-class", "2", "--orders", "1", "-o", "demo.html")
    assert "mean of shifted" in printed and "1830 icons" in printed
    assert (tmp_path / "demo.html").stat().st_size > 100_000
