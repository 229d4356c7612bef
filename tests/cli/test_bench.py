"""The options of `soba bench`: what they do, and that none is ignored in silence."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from image_trees import Pictures, coop_tree, generated_split, imagenet_tree
from PIL import Image
from run_cli import refused, soba_command

import soba
from soba.datasets.icons import icons
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
        (("folder", ".", "--model", "tiny", "--data", "."), "bench folder: --data is for ood and"),
        (("folder", ".", "--model", "tiny", "--datasets", "a"), "bench folder: --datasets is for"),
        (("folder", "."), "bench folder: say --model"),
        (("folder", "--model", "tiny"), "no folder was named"),
    ],
)
def test_options_without_effect_are_refused(arguments, message, tmp_path):
    assert message in refused("bench", *arguments, "-o", tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("benchmark", "model"),
    [("icons", "ViT-B-16"), ("cross", "ViT-B-16"), ("icons", "ViT-B-16/openai")],
)
def test_the_papers_models_come_with_openais_weights(
    benchmark, model, tmp_path, pictures, monkeypatch
):
    def stop(model, pretrained, **options):
        raise ValueError(f"asked for {model} with {pretrained}")

    for module in ("soba.cli.bench", "soba.cli._common"):  # by name: soba.cli.bench is the app
        monkeypatch.setattr(sys.modules[module], "load_encoder", stop)
    options = ["--model", model, "-o", tmp_path / "results"]
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


def test_the_help_lists_what_a_benchmark_takes():
    only = {"--data": "ood cross", "--incomplete": "ood cross", "--tda-listing": "ood"}
    only |= {"--per-class": "icons", "--views": "ood cross icons folder"}
    only |= {"--datasets": "ood cross icons", "--train": "folder"}
    for benchmark in ("ood", "cross", "icons", "folder"):
        options = re.findall(r"--[\w-]+", soba_command("bench", benchmark, "--help"))
        for option, takers in only.items():
            assert (option in options) == (benchmark in takers.split()), (benchmark, option)


def test_the_help_says_which_methods_views_bring(tmp_path):
    words = " ".join(re.sub(r"[│\n]", " ", soba_command("bench", "icons", "--help")).split())
    assert "from 2 views on also clip+views and zero, from 5 on mta" in words
    options = ["--datasets", "icons-v2", "--per-class", 1, "--orders", 1, "-o", tmp_path]
    soba_command("bench", "icons", *options, "--views", 2)
    methods = {json.loads(p.read_text())["method"] for p in (tmp_path / "records").iterdir()}
    assert methods == {*soba.list_methods(family="stream"), "clip+views", "zero"}


def test_tda_runs_with_its_constants_of_the_data_set_unless_they_are_fixed(tmp_path, pictures):
    coop_tree(tmp_path / "data", pictures, "dtd", generated_split("dtd"))
    options = ["bench", "cross", "--data", tmp_path / "data", "--datasets", "dtd", "--incomplete"]
    options += ["--model", "tiny", "--methods", "tda", "--orders", 1, "-o", tmp_path / "results"]
    printed = " ".join(soba_command(*options).split())
    assert "tuned in an undocumented way: treat as tuned on the test data" in printed
    printed = " ".join(soba_command(*options, "--fixed-constants").split())
    assert "Other hyper-parameters than the paper's: TDA (beta 5, the paper's 3)." in printed
    records = [json.loads(path.read_text()) for path in (tmp_path / "results/records").iterdir()]
    assert sorted(record["hyper_parameters"]["beta"] for record in records) == [3, 5]
    printed = soba_command("bench", "icons", "--fixed-constants", "-o", tmp_path / "icons", code=2)
    assert "--fixed-constants: no method here has constants of a data set's own" in printed
    assert not (tmp_path / "icons").exists()


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
        assert "1 image could not be read and was left out" in out and torn.name in out
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


def test_few_shot_methods_learn_from_a_folder_of_their_own(tmp_path):
    classes = [name for name in icons("source", 1).class_names if " " not in name][:4]
    for folder, seed, spelled in (("photos", 0, str.lower), ("labelled", 1, str.title)):
        drawn = icons("source", 3, seed=seed, classes=classes)
        for index, label in enumerate(drawn.labels):
            file = tmp_path / folder / spelled(drawn.class_names[label]) / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            drawn.image(index).save(file)
    options = ["bench", "folder", tmp_path / "photos", "--model", "tiny", "--orders", 1]
    options += ["--templates", "an icon of a {}.", "--methods", "zero-shot,gda,tip-adapter"]
    options += ["--shots", 2, "-o", tmp_path / "results"]
    assert "a train split is needed: say --train" in soba_command(*options, code=2)
    printed = soba_command(*options, "--train", tmp_path / "labelled")
    assert "3 records in" in printed
    files = (tmp_path / "results" / "records").iterdir()
    records = {r["method"]: r for r in (json.loads(path.read_text()) for path in files)}
    assert {method: r["shots"] for method, r in records.items()} == {
        "zero-shot": None,
        "gda": 2,
        "tip-adapter": 2,
    }
    assert records["tip-adapter"]["accuracy"] > 50  # right labels: of four classes
    without = [*options, "--train", tmp_path / "labelled", "--methods", "zero-shot,soba+"]
    said = soba_command(*without, code=2)
    assert "--train is for few-shot methods to learn from, and none was asked for" in said
    said = soba_command("bench", "icons", "--train", tmp_path / "labelled", code=2)
    assert "--train has no place here" in said


def test_any_labelled_folder_is_a_data_set(tmp_path):
    """Class folders and a table; again, nothing is left to do; the report reads the records."""
    classes = [name for name in icons("source", 1).class_names if " " not in name][:4]
    for domain in ("source", "v2"):
        drawn = icons(domain, 3, classes=classes)
        for index in range(len(drawn)):
            file = tmp_path / domain / drawn.class_names[drawn.labels[index]] / f"{index}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            drawn.image(index).save(file)
    pictures = sorted((tmp_path / "v2").rglob("*.png"))
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in pictures]
    (tmp_path / "listed.csv").write_text("\n".join(["path,label", *rows]))
    options = ["bench", "folder", *(tmp_path / name for name in ("source", "v2", "listed.csv"))]
    options += ["--model", "tiny", "--templates", "an icon of a {}.", "--orders", 2]
    options += ["--methods", "zero-shot,soba+", "-o", tmp_path / "results"]
    printed = soba_command(*options)
    assert "Labelled folders, tiny" in printed and "12 records in" in printed
    files = list((tmp_path / "results" / "records").iterdir())
    records = [json.loads(path.read_text()) for path in files]
    assert {(r["benchmark"], r["dataset"]) for r in records} == {
        ("folder", name) for name in ("source", "v2", "listed")
    }
    score = {(r["dataset"], r["method"], r["seed"]): r["accuracy"] for r in records}
    assert score["source", "zero-shot", 0] > 50  # four classes that the tiny CLIP knows
    assert score["listed", "zero-shot", 0] == score["v2", "zero-shot", 0]  # the same images
    before = {path: path.stat().st_mtime_ns for path in files}
    soba_command(*options)
    assert {path: path.stat().st_mtime_ns for path in files} == before
    page = tmp_path / "r.html"
    soba_command("report", tmp_path / "results", "-o", page)
    assert "Labelled folders" in page.read_text()
    assert "has only a test split" in soba_command(
        *options, "--tune-on", "val", "--methods", "tda", code=2
    )


def test_without_torch_all_are_those_that_do_without(tmp_path):
    code = "import sys; sys.modules['torch'] = None; from soba.cli import main; main()"

    def bench(methods):
        options = ("--per-class", "1", "--orders", "1", "--datasets", "icons-hard", "--shots", "2")
        return subprocess.run(
            [sys.executable, "-c", code, "bench", "icons", "--methods", methods, *options],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "160", "PYTHONPATH": str(Path(soba.__file__).parents[1])},
        )

    done = bench("all")
    assert done.returncode == 0, done.stderr
    for method in ("coop", "histpt", "tip-adapter-f"):
        assert f"{method} left out: needs torch and open_clip" in done.stderr
    assert list(tmp_path.glob("results/records/*-soba+-*"))
    done = bench("coop")
    assert done.returncode == 2 and "error" in done.stderr and "torch" in done.stderr
