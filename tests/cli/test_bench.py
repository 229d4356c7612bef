"""The options of `soba bench`: what they do, and that none is ignored in silence."""

import json
import re
import sys

import pytest
from image_trees import Pictures, coop_tree, generated_split, imagenet_tree
from PIL import Image
from run_cli import refused, soba_command

from soba.datasets.imagenet import folder_names


@pytest.fixture
def pictures(tmp_path):
    return Pictures(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("icons", "--augmix"), "--augmix changes the views, and there is one: say --views 64"),
        (("icons", "--stream-views"), "--stream-views needs views: say --views 64"),
        (("icons", "--data", "."), "bench icons: draws its images, --data has no place here"),
        (("icons", "--incomplete"), "bench icons: draws its images, --incomplete has no place"),
        (("icons", "--tda-listing"), "bench icons: draws its images, --tda-listing has no place"),
        (("ood", "--data", ".", "--model", "tiny", "--per-class", 3), "bench ood: --per-class is"),
        (("cross", "--data", ".", "--model", "tiny", "--tda-listing"), "--tda-listing is for ood"),
        (("cross", "--data", "."), "bench cross: say --model, ViT-B-16 or RN50 as in the paper"),
        (("ood", "--data", ".", "--methods", "ncm"), "bench ood: say --model"),
        (("ood", "--model", "tiny"), "bench ood: --data must be the folder"),
    ],
)
def test_options_without_effect_are_refused(arguments, message, tmp_path):
    assert message in refused("bench", *arguments, "-o", tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("benchmark", ["icons", "cross"])
def test_the_papers_models_come_with_openais_weights(benchmark, tmp_path, pictures, monkeypatch):
    def stop(model, pretrained, **options):
        raise ValueError(f"asked for {model} with {pretrained}")

    for module in ("soba.cli.bench", "soba.cli._common"):  # by name: soba.cli.bench is the app
        monkeypatch.setattr(sys.modules[module], "load_encoder", stop)
    options = ["--model", "ViT-B-16", "-o", tmp_path / "results"]
    if benchmark == "cross":
        coop_tree(tmp_path, pictures, "dtd", generated_split("dtd"))
        options += ["--data", tmp_path, "--datasets", "dtd", "--incomplete"]
    assert "asked for ViT-B-16 with openai" in soba_command("bench", benchmark, *options, code=2)


def test_too_few_views_are_told_before_encoding(tmp_path):
    out = soba_command(
        "bench", "icons", "--methods", "mta,zero", "--views", 3, "-o", tmp_path / "r", code=2
    )
    assert "mta: needs 5 views at least: say --views" in out and "zero:" not in out
    assert not (tmp_path / "r").exists()


def test_the_help_says_which_methods_views_bring(tmp_path):
    told = " ".join(re.sub(r"[│\n]", " ", soba_command("bench", "icons", "--help")).split())
    assert "from 2 views on also clip+views and zero, from 5 on mta" in told
    options = ["--datasets", "icons-v2", "--per-class", 1, "--orders", 1, "-o", tmp_path]
    soba_command("bench", "icons", *options, "--views", 2)
    methods = {json.loads(p.read_text())["method"] for p in (tmp_path / "records").iterdir()}
    assert methods == {"zero-shot", "ncm", "tda", "soba", "soba+", "clip+views", "zero"}


def test_an_incomplete_set_is_run_when_asked_for_and_says_so(tmp_path, pictures):
    root, results = tmp_path / "data", tmp_path / "results"
    images = coop_tree(root, pictures, "dtd", generated_split("dtd"))
    options = ["bench", "cross", "--data", root, "--datasets", "dtd", "--model", "tiny"]
    options += ["--methods", "zero-shot", "--orders", 1, "-o", results]
    stopped = soba_command(*options, code=2)
    assert "lists 94 test images, not 1692" in stopped
    assert "--datasets leaves sets out, --incomplete goes on without missing images" in stopped
    torn = next(images.rglob("*.jpg"))
    torn.unlink()
    torn.write_bytes(b"no picture")
    for _ in range(2):  # the second run finds all done, and says the same
        out = soba_command(*options, "--incomplete")
        assert out.count("dtd: 94 of 1692 images, not the literature's split") == 1
        assert out.count("dtd: 93 of 1692 images, not the literature's split") == 1
        assert "1 images could not be read and were left out" in out and torn.name in out
    [path] = (results / "records").iterdir()
    record = json.loads(path.read_text())
    assert (record["samples"], record["left_out"], record["expected"]) == (93, 1692 - 93, 1692)
    torn.unlink()
    Image.new("RGB", (8, 8)).save(torn, "jpeg")
    out = soba_command(*options, "--incomplete")
    assert "could not be read" not in out
    assert json.loads(path.read_text())["samples"] == 94


def test_stray_files_and_the_listing_of_tda(tmp_path, pictures):
    root, results = tmp_path / "data", tmp_path / "results"
    place = imagenet_tree(
        root,
        pictures,
        "imagenet-a",
        file=lambda label, number: f"{'mushroom' if number % 200 < 190 else 'nut'}_{number}.jpg",
    )
    (place / folder_names("imagenet-a")[0] / "Thumbs.db").write_text("left by Windows")
    options = ["bench", "ood", "--data", root, "--datasets", "imagenet-a", "--model", "tiny"]
    options += ["--methods", "zero-shot", "--orders", 1, "-o", results, "--tda-listing"]
    out = soba_command(*options)
    assert "files without an image's name" in out and "Thumbs.db" in out
    [path] = (results / "records").iterdir()
    record = json.loads(path.read_text())
    assert (record["samples"], record["expected"], record["listing"]) == (370, 7500, "tda")
    assert record["left_out"] == 7500 - 370
