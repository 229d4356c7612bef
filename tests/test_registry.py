"""Methods by name: ours, registered ones, and those that other packages bring along."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import stranger
from PIL import Image
from run_cli import soba_command
from stranger import ClassMedians

import soba
from soba import registry
from soba.datasets.icons import DOMAINS
from soba.testing import check_adapter, example_stream


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No strangers are known yet, and none will be afterwards."""
    monkeypatch.setattr(registry, "_registered", {})
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Lay out, as pip does, a package that brings methods along: name -> module:Class."""

    def installed(package="medians-package", **points):
        site = tmp_path / "site"
        info = site / f"{package.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[soba.methods]", *lines]) + "\n")
        monkeypatch.syspath_prepend(site)
        return site

    return installed


def is_drawn(colour, page):
    """Whether a colour, #rrggbb, is in one of the pictures inside a page."""
    for data in re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", page):
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
        if (pixels == list(bytes.fromhex(colour[1:]))).all(axis=-1).any():
            return True
    return False


def test_by_pattern_and_family():
    assert soba.list_methods("tip-*") == ["tip-adapter", "tip-adapter-f"]
    assert soba.list_methods("mta*", family="stream") == []
    families = ("stream", "episodic", "few-shot", "tuner", "transductive")
    by_family = [name for family in families for name in soba.list_methods(family=family)]
    assert sorted(by_family) == sorted(soba.list_methods())
    with pytest.raises(ValueError, match="no family 'streams'; there are: stream, episodic"):
        soba.list_methods(family="streams")


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match=r"'sobs'. Did you mean 'soba'\? Known: zero-shot, ncm"):
        soba.create_adapter("sobs", [[1.0]])


def test_a_registered_method_is_known_by_its_name(tmp_path):
    assert soba.register(ClassMedians) is ClassMedians  # so it is a decorator, too
    assert soba.list_methods()[-1] == "medians"
    features, _, text = example_stream()
    adapter = soba.create_adapter("medians", text)
    adapter.adapt(features)
    adapter.save(tmp_path / "state")
    assert type(soba.load(tmp_path / "state")) is ClassMedians


def test_a_name_is_one_methods_only():
    class Other(soba.NCM):
        card = soba.Card("medians")

    class Namesake(soba.NCM):
        card = soba.Card("tda")

    soba.register(ClassMedians)
    soba.register(ClassMedians)  # once more is no clash
    with pytest.raises(ValueError, match=r"Other: 'medians' is the name of stranger.ClassMedians"):
        soba.register(Other)
    with pytest.raises(ValueError, match="Namesake: 'tda' is the name of a method of soba's own"):
        soba.register(Namesake)
    assert registry.adapter_class("medians") is ClassMedians


def test_what_is_no_method_is_not_registered():
    class Nameless(soba.TDA):
        """Its parent's card is the card of another method."""

    with pytest.raises(TypeError, match="Nameless has no card"):
        soba.register(Nameless)
    with pytest.raises(TypeError, match="not a subclass"):
        soba.register(dict)


@pytest.mark.parametrize(
    ("point", "why"),
    [
        ({"medians": "no_such_module:Method"}, "No module named 'no_such_module'"),
        ({"medians": "stranger:NoSuchClass"}, "NoSuchClass"),
        ({"median": "stranger:ClassMedians"}, "its card has another name, 'medians'"),
        ({"soba-again": "soba.adapt.soba:SOBA"}, "its card has another name, 'soba'"),
        ({"tda": "soba.adapt.tda:TDA"}, "'tda' is the name of a method of soba's own"),
        ({"medians": "json:dumps"}, "is not a subclass"),
    ],
)
def test_a_broken_entry_point_is_named_and_the_rest_works(install, point, why):
    install("broken-package", **point)
    [(name, value)] = point.items()
    with pytest.warns(UserWarning) as said:
        known = soba.list_methods()
    [message] = [str(warning.message) for warning in said]
    assert message.startswith(f"method '{name}' of broken-package ({value}) is left out: ")
    assert why in message
    assert "medians" not in known and known == list(registry._OURS)
    assert registry.card("tda").title == "TDA"
    assert soba.list_methods() == known  # said once


def test_two_packages_with_one_name(install):
    install("one", medians="stranger:ClassMedians")
    install("two", medians="stranger_twin:ClassMedians")
    with pytest.warns(UserWarning, match="medians.*is left out"):
        assert soba.list_methods()[-1] == "medians"


def test_the_stranger_keeps_the_contract():
    check_adapter(ClassMedians)


def test_an_installed_method_runs_wherever_ours_do(install, tmp_path):
    install(medians="stranger:ClassMedians")
    assert "medians? " in soba_command("methods")
    assert "Nearest class median over the entropy queue" in soba_command("methods")

    features, labels, text = example_stream()
    file = tmp_path / "features.safetensors"
    soba.FeatureSet(features, text, 20.0, labels).save(file)
    soba_command("eval", file, "--orders", 2, "--json", tmp_path / "eval.json")
    records = json.loads((tmp_path / "eval.json").read_text())["records"]
    theirs = [record for record in records if record["method"] == "medians"]
    assert [record["provenance"] for record in theirs] == ["an idea of mine"] * 2

    options = ["--datasets", f"icons-{min(DOMAINS)}", "--per-class", 1, "--orders", 2]
    results = tmp_path / "results"
    options += ["--methods", "zero-shot,medians", "-o", results]
    assert "Class medians" in soba_command("bench", "icons", *options)
    soba_command("report", results, "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Class medians" in page
    assert is_drawn(ClassMedians.card.colour, page) and not is_drawn("#ff00ff", page)


def test_an_installed_method_comes_back_from_its_file_in_another_process(install, tmp_path):
    site = install(medians="stranger:ClassMedians")
    _, _, text = example_stream()
    soba.create_adapter("medians", text, alpha=5.0).save(tmp_path / "state")
    code = "import sys, soba; print(soba.load(sys.argv[1]))"
    helpers = os.path.dirname(stranger.__file__)
    path = os.pathsep.join([str(site), helpers, *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "state")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("ClassMedians(<") and "alpha=5.0" in done.stdout
