"""`soba check`: the verdict, what it is from, and what to do next."""

import csv
import shlex
import shutil

import numpy as np
import pytest
from PIL import Image
from run_cli import refused, soba_command

import soba
from soba.studies.check import answer_all, check, few_per_class, tally
from soba.testing import example_stream

IMAGES, LABELS, TEXT = example_stream(n=400, classes=5, width=16, seed=3)


def save(path, **more):
    arrays = {"image_features": IMAGES, "text_features": TEXT, "logit_scale": np.float32(20)}
    np.savez(path, **arrays, **more)
    return path


@pytest.fixture
def file(tmp_path):
    return save(tmp_path / "features.npz", labels=LABELS)


def answers():
    return answer_all(soba.FeatureSet(IMAGES, TEXT, logit_scale=20.0))


def lines_of(printed, begin):
    return [line for line in printed.splitlines() if line.startswith(begin)]


def next_command(printed):
    [line] = lines_of(printed, "next: ")
    return shlex.split(line.removeprefix("next: "))


def test_all_labels_of_a_file_give_the_truth(file, tmp_path):
    printed = soba_command("check", file, "--labelled", "all", "-o", tmp_path / "check.png")
    said = answers()
    won, lost = (said.adapted == LABELS).sum(), (said.zero_shot == LABELS).sum()
    assert won > lost
    accuracy, gain = f"{100 * won / 400:.1f}", f"{100 * (won - lost) / 400:+.1f}"
    rows = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if " to " in line}
    assert rows["SOBA+"] == [accuracy, accuracy, "to", accuracy]
    assert rows["gain"] == [gain, gain, "to", gain]
    differ = int(said.differ.sum())
    assert f"answered differently by SOBA+ and zero-shot: {differ} of 400 images" in printed
    [verdict] = lines_of(printed, "yes: ")
    assert "every image that is answered differently is labelled" in verdict
    assert next_command(printed) == ["soba", "eval", str(file), "--methods", "zero-shot,soba+"]
    with Image.open(tmp_path / "check.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 400


def test_a_few_labels_are_tested_and_said_in_numbers(file):
    printed = soba_command("check", file, "--labelled", 12, "--seed", 1)
    checked = check(tally(answers(), few_per_class(LABELS, 12, seed=1)))
    counts = checked.tally
    assert f"{file.name}: 400 images, 5 classes, 60 labelled" in printed
    assert (
        f"labelled of these: {counts.differ_labelled}; SOBA+ is right on {counts.won}, zero-shot "
        f"on {counts.lost}, neither on {counts.neither}" in printed
    )
    assert lines_of(printed, checked.verdict)
    assert f"{checked.gain.low:+.1f} to {checked.gain.high:+.1f}" in printed
    assert "no labels seen, scored after one pass over all images" in printed


def test_where_labels_are_too_few_it_names_images_and_its_command_goes_on(file):
    printed = soba_command("check", file, "--labelled", 1)
    checked = check(tally(answers(), few_per_class(LABELS, 1)))
    assert checked.verdict == "too few to tell"
    [verdict] = lines_of(printed, "too few to tell: ")
    assert verdict.startswith(f"too few to tell: label {checked.more} more, these (")
    named = [int(line.split()[1]) for line in lines_of(printed, "  row ")]
    assert len(named) == min(checked.more, 10) and answers().differ[named].all()
    command = next_command(printed)
    assert command[:3] == ["soba", "check", str(file)]
    assert lines_of(soba_command(*command[1:]), ("yes: ", "no: ", "too few to tell: "))


def test_without_labels_it_says_how_far_off_the_estimate_may_be_and_never_yes(tmp_path):
    file = save(tmp_path / "features.npz")
    printed = soba_command("check", file)
    estimate = answers().expected
    assert f"adapted on {estimate.adapted:.0%} (estimated without labels)" in printed
    assert "off by -3.3 to +48.0 points for CLIP and -10.8 to +52.3 adapted" in printed
    assert not lines_of(printed, "yes")
    assert lines_of(printed, "too few to tell: label ")
    assert "--labelled 3 uses three" not in printed
    assert "--labelled 3 uses three" in soba_command("check", save(file, labels=LABELS))


def test_the_table_to_fill_in_brings_the_verdict(tmp_path):
    file, table = save(tmp_path / "features.npz"), tmp_path / "label these.csv"
    verdict = ""
    for _ in range(12):  # label, ask again
        few = ["--labelled", table] if table.exists() else []
        printed = soba_command("check", file, *few, "--to-label", table)
        [verdict] = lines_of(printed, ("yes: ", "no: ", "too few to tell: "))
        if not verdict.startswith("too few"):
            break
        assert next_command(printed)[-2:] == ["--labelled", str(table)]
        with table.open(newline="") as content:
            rows = list(csv.DictReader(content))
        assert rows and any(not row["label"] for row in rows)
        for row in rows:
            label = str(LABELS[int(row["path"].removeprefix("row "))])
            assert row["label"] in ("", label)
            row["label"] = label
        with table.open("w", newline="") as content:
            writer = csv.DictWriter(content, ["path", "label"])
            writer.writeheader()
            writer.writerows(rows)
    said = answers()
    helps = (said.adapted == LABELS).sum() > (said.zero_shot == LABELS).sum()
    assert helps and verdict.startswith("yes: ")
    # Only images answered differently were labelled: they tell the gain, and no accuracy.
    assert "no label where both agree" in printed


def test_the_table_to_fill_in_keeps_the_labels_there_are(tmp_path):
    file = save(
        tmp_path / "features.npz", class_names=np.array(["ant", "bee", "cow", "dog", "elk"])
    )
    few, more = tmp_path / "few.csv", tmp_path / "more.csv"
    few.write_text("path,label\nrow 5,bee\nrow 7,elk\n")
    printed = soba_command("check", file, "--labelled", few, "--to-label", more)
    lines = more.read_text().splitlines()
    assert lines[:3] == ["path,label", "row 5,bee", "row 7,elk"]
    assert len(lines) > 3 and all(line.endswith(",") for line in lines[3:])
    assert f"to be labelled: {len(lines) - 3} images in {more}" in printed


def test_where_nothing_differs_the_answer_is_no_without_labels(tmp_path):
    path = tmp_path / "sure.npz"
    labels = np.arange(60) % 5
    images = np.eye(5, 16)[labels] + 0.1 * np.random.default_rng(0).normal(size=(60, 16))
    np.savez(path, image_features=images, text_features=np.eye(5, 16), labels=labels)
    printed = soba_command("check", path)
    [verdict] = lines_of(printed, "no: SOBA+ and zero-shot answer all images alike")
    assert verdict.endswith("yet: so few images teach it little")  # 60, of 5 classes
    assert next_command(printed) == ["nothing", "to", "run:", "stay", "with", "zero-shot"]


def test_where_nothing_is_learned_no_label_helps(tmp_path):
    path = tmp_path / "few.npz"
    np.savez(path, image_features=IMAGES[:1], text_features=TEXT, labels=LABELS[:1])
    printed = soba_command("check", path, "--labelled", "all")
    assert lines_of(printed, "too few to tell: SOBA+ learns nothing from 1 image")
    assert "with more images; labels would not help" in printed
    np.savez(path, image_features=IMAGES[:0], text_features=TEXT)
    assert "holds no images" in refused("check", path)


def test_a_folder_of_class_folders(icon_folder, tmp_path):
    printed = soba_command("check", icon_folder, "--labelled", 2, "--batch", 8)
    assert "20 images, 5 classes, 10 labelled" in printed
    assert lines_of(printed, ("yes: ", "no: ", "too few to tell: "))
    flat = tmp_path / "flat"
    flat.mkdir()
    names = []
    for place, image in enumerate(sorted(icon_folder.rglob("*.png"))):
        names.append(image.parent.name)
        shutil.copy(image, flat / f"{place:02d}.png")
    rows = [f"{flat / f'{k:02d}.png'},{names[k]}" for k in range(20)]
    few = tmp_path / "few.csv"
    few.write_text("\n".join(["path,label", *rows]))
    classes = ",".join(sorted(set(names)))
    printed = soba_command("check", flat, "--classes", classes, "--labelled", few)
    assert "20 images, 5 classes, 20 labelled" in printed
    command = next_command(printed)
    assert command[:5] == ["soba", "classify", str(flat), "--classes", classes]
    assert "has no class folders; say which classes there are" in refused("check", flat)
    (flat / "deeper").mkdir()
    shutil.copy(flat / "00.png", flat / "deeper")
    assert "--classes takes all of them, without labels" in refused("check", flat)
    printed = soba_command("check", flat, "--classes", classes)
    assert "20 images, 5 classes, 0 labelled" in printed  # the copy counts once


def test_prompts_are_checked_with_their_templates(tmp_path):
    wrong = TEXT[[1, 0, 2, 3, 4]]
    file = save(
        tmp_path / "features.npz",
        prompts=np.array(["swapped {}", "right {}"]),
        prompt_features=np.stack([wrong, TEXT]),
        class_names=np.array(["ant", "bee", "cow", "dog", "elk"]),
    )
    printed = soba_command("check", file, "--prompts")
    assert "prompt check on 400 images: hints, not proof" in printed
    ranked = [line.split("% ")[1] for line in printed.splitlines() if line.endswith(" {}")]
    assert ranked == ["right {}", "swapped {}"]
    assert "prompt check" not in soba_command("check", file)


def test_what_is_asked_wrongly_is_refused(file, tmp_path):
    assert "no such file or folder, no number, and not `all`" in refused(
        "check", file, "--labelled", "nowhere"
    )
    assert "takes a positive whole number" in refused("check", file, "--labelled", "0")
    assert "leave --classes out" in refused("check", file, "--classes", "a,b")
    assert "does not exist" in refused("check", file, "-o", tmp_path / "none" / "a.png")
    bare = save(tmp_path / "bare.npz")
    assert "no labels to draw from" in refused("check", bare, "--labelled", 3)
