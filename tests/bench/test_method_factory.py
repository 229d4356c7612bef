"""Methods that need more than features: what is missing is said first; all run on the tiny CLIP."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
from run_cli import refused, soba_command
from tiny_clip import openclip  # first: it makes open_clip importable

from soba.bench.evaluate import evaluate
from soba.bench.method_factory import MethodFactory, min_views
from soba.datasets.icons import class_names, icons
from soba.encode.extract import Extraction
from soba.encode.onnx import OnnxEncoder
from soba.encode.views import Views
from soba.feature_set import FeatureSet
from soba.tune.tip_adapter_f import TipAdapterF

FEW = class_names(families=4)[:6]


def embedded(encoder, folder, domain, per_class, views=None, seed=0):
    images = icons(domain, per_class, seed=seed, classes=FEW)
    maker = None if views is None else Views(views, preprocess=encoder.preprocess)
    extraction = Extraction(
        encoder, images, images.class_names, images.templates, images.labels, views=maker
    )
    return extraction.run(folder / f"{domain}-{per_class}-{views}-{seed}.safetensors")


@pytest.fixture(scope="module")
def encoder():
    return OnnxEncoder.tiny()


@pytest.fixture(scope="module")
def tunable():
    return openclip.OpenClip.tiny(threads=1)


@pytest.fixture(scope="module")
def seen(encoder, tmp_path_factory):
    return embedded(encoder, tmp_path_factory.mktemp("seen"), "v2", 2, views=12)


@pytest.fixture(scope="module")
def source(encoder, tmp_path_factory):
    return embedded(encoder, tmp_path_factory.mktemp("source"), "source", 3, seed=1)


def test_the_tiny_clip_is_the_same_in_onnx_and_in_open_clip(encoder, tunable):
    images = icons("v2", 1, classes=FEW)
    pixels = np.stack([encoder.preprocess(images.image(i)) for i in range(len(images))])
    np.testing.assert_allclose(
        encoder.encode_pixels(pixels), tunable.encode_pixels(pixels), atol=1e-4
    )
    sentences = ["an icon of a bell.", "a photo of a book open."]
    np.testing.assert_allclose(
        encoder.encode_texts(sentences), tunable.encode_texts(sentences), atol=1e-4
    )
    assert tunable.logit_scale == pytest.approx(encoder.logit_scale, rel=1e-5)


def test_what_is_missing_is_said_before_any_work(seen, encoder, tunable):
    plain = dataclasses.replace(seen, image_features=np.asarray(seen.image_features[:, 0]))
    with pytest.raises(ValueError, match="tpt needs views"):
        MethodFactory(plain, tunable).check("tpt")
    with pytest.raises(ValueError, match="say with --model"):
        MethodFactory(seen).check("tpt")
    with pytest.raises(ValueError, match="coop needs labelled training samples"):
        MethodFactory(seen, tunable).check("coop")
    turned = dataclasses.replace(seen, text_features=seen.text_features[:, ::-1].copy())
    with pytest.raises(ValueError, match="not those that tiny makes"):
        MethodFactory(turned, tunable).check("tpt")
    nameless = dataclasses.replace(seen, class_names=None)
    with pytest.raises(ValueError, match="needs class names"):
        MethodFactory(nameless, tunable).check("tpt")
    MethodFactory(seen, tunable).check("tpt")


def short(features, views):
    """The same images with fewer views."""
    return dataclasses.replace(features, image_features=features.image_features[:, :views])


def test_nothing_is_trained_or_streamed_before_all_is_checked(seen, source, tunable):
    """What the last method lacks stops the first one."""
    strange = dataclasses.replace(source, class_names=("yes", *source.class_names[1:]))
    few = dataclasses.replace(
        source, image_features=source.image_features[3:], labels=source.labels[3:], keys=None
    )
    wordless = dataclasses.replace(seen, prompts=("{}.",))
    towerless = copy.copy(tunable)
    towerless.text_tower = None
    for features, given, encoder, methods, message in (
        (seen, source, tunable, ["coop", "difftpt"], "--fallback"),
        (short(seen, 5), None, tunable, ["zero-shot", "mta", "tpt"], "tpt needs views.* 10 at"),
        (seen, strange, tunable, ["coop", "tip-adapter"], "not among the 6 known classes"),
        (seen, few, tunable, ["zero-shot", "coop"], f"none of 1: {source.class_names[0]}"),
        (seen, few, tunable, ["zero-shot", "gda"], f"none of 1: {source.class_names[0]}"),
        (wordless, None, tunable, ["zero-shot", "tpt"], "no words before the {}"),
        (seen, None, towerless, ["zero-shot", "tpt"], "prompts cannot be tuned"),
    ):
        done: list[object] = []
        factory = MethodFactory(features, encoder, given)
        with pytest.raises(ValueError, match=message):
            evaluate(features, methods, factory=factory, keep=done.append)
        assert not done and not factory.trained, methods


def test_how_many_views_are_needed_depends_on_the_settings(seen, tunable):
    factory = MethodFactory(short(seen, 5), tunable)
    factory.check("tpt", {"selection": 0.2})
    factory.check("difftpt", {"fallback": True})
    with pytest.raises(ValueError, match="V of 6 at least"):
        factory.check("difftpt", {"generated": 4})
    assert min_views("tpt", {"selection": 1e-9}) == 10**9
    with pytest.raises(ValueError, match="selection must be"):
        factory.check("tpt", {"selection": 0})


def test_samples_of_another_encoder_are_refused(seen, source):
    other = dataclasses.replace(source, encoder_fingerprint="other-0123456789abcdef")
    narrow = dataclasses.replace(
        source,
        encoder_fingerprint=None,
        image_features=source.image_features[:, :8],
        text_features=source.text_features[:, :8],
    )
    for wrong in (other, narrow):
        with pytest.raises(ValueError, match="different encoders do not mix"):
            MethodFactory(seen, None, wrong).check("gda")
    prompted = dataclasses.replace(source, templates_fingerprint="01234567")
    MethodFactory(seen, None, prompted).check("gda")  # other templates, the same encoder


def test_generated_views_are_for_difftpt_alone(seen, tunable):
    policy = json.loads(seen.view_policy or "{}") | {"generated": 2}
    with_generated = dataclasses.replace(seen, view_policy=json.dumps(policy))
    methods = ["clip+views", "zero", "difftpt"]
    records = evaluate(
        with_generated,
        methods,
        overrides={"steps": 1},
        factory=MethodFactory(with_generated, tunable),
    )
    assert [record.views for record in records] == [10, 10, 12]
    for record, plain in zip(records, evaluate(short(seen, 10), methods[:2]), strict=False):
        assert record.accuracy_over_stream == plain.accuracy_over_stream
        assert record.calibration_error == pytest.approx(plain.calibration_error)
    one = short(with_generated, 3)
    with pytest.raises(ValueError, match=r"zero needs views.*one view each"):
        MethodFactory(one).check("zero")
    (record,) = evaluate(one, ["zero-shot"], orders=1)
    assert record.views == 1
    with pytest.raises(ValueError, match="speaks of 2 generated views"):
        MethodFactory(short(with_generated, 2)).check("zero-shot")


def test_difftpt_refuses_without_generated_views_unless_told(seen, tunable):
    factory = MethodFactory(seen, tunable)
    with pytest.raises(ValueError, match=r"difftpt needs views from a diffusion.*--fallback"):
        evaluate(seen, ["difftpt"], factory=factory)
    (record,) = evaluate(
        seen, ["difftpt"], overrides={"fallback": True, "steps": 1}, factory=factory
    )
    assert record.used == "views only"
    policy = json.loads(seen.view_policy or "{}") | {"generated": 3}
    with_generated = dataclasses.replace(seen, view_policy=json.dumps(policy))
    (record,) = evaluate(
        with_generated,
        ["difftpt"],
        overrides={"steps": 1},
        factory=MethodFactory(with_generated, tunable),
    )
    assert record.used == "3 generated views"


def half(seen):
    """Every second class of a set, one view each."""
    fewer = icons("v2", 2, classes=FEW[::2])
    classes = [seen.class_names.index(name) for name in fewer.class_names]
    rows = np.isin(seen.labels, classes)
    return FeatureSet(
        np.asarray(seen.image_features[rows][:, 0]),
        seen.text_features[classes],
        logit_scale=seen.logit_scale,
        labels=fewer.labels,
        class_names=fewer.class_names,
        prompts=seen.prompts,
    )


def test_few_shot_methods_are_carried_over_by_class_names(seen, source, tunable):
    fewer = half(seen)
    trained: dict[str, object] = {}
    factory = MethodFactory(fewer, tunable, source, trained)
    records = evaluate(
        fewer, ["coop", "gda", "tip-adapter"], overrides={"epochs": 2}, factory=factory
    )
    assert [record.method for record in records] == ["coop", "gda", "tip-adapter"]
    (learner,) = trained.values()
    assert learner.n_classes == len(FEW)  # trained once, on all classes of the source
    strange = dataclasses.replace(fewer, class_names=("yes", "no", "perhaps"))
    with pytest.raises(ValueError, match="not among the 6 known classes"):
        MethodFactory(strange, tunable, source).make("gda", {})


def test_tip_adapter_f_is_trained_once_on_all_classes_of_the_source(seen, source, monkeypatch):
    fits = []
    fit = TipAdapterF._train
    monkeypatch.setattr(TipAdapterF, "_train", lambda *args: fits.append(0) or fit(*args))
    fewer, trained = half(seen), {}
    other_text = fewer.text_features + np.float32(0.01)
    for target in (fewer, dataclasses.replace(fewer, text_features=other_text)):
        factory = MethodFactory(target, None, source, trained)
        evaluate(target, ["zero-shot", "tip-adapter-f"], orders=2, factory=factory)
    assert len(fits) == 1
    whole = TipAdapterF(source.text_features, logit_scale=source.logit_scale)
    whole.fit(source.image_features, source.labels)
    columns = [source.class_names.index(name) for name in fewer.class_names]
    tuner = MethodFactory(fewer, None, source, trained).make("tip-adapter-f", {})
    np.testing.assert_allclose(
        tuner.logits(fewer.image_features),
        whole.logits(fewer.image_features)[:, columns],
        atol=1e-3,
    )
    with_val = dataclasses.replace(
        fewer, val_features=fewer.image_features, val_labels=fewer.labels
    )
    tuner = MethodFactory(with_val, None, source, trained).make("tip-adapter-f", {})
    assert tuner.tuned_on_ == "validation" and len(fits) == 2


def test_a_source_without_labels_or_names_is_named(seen, source):
    for lacks, message in (({"labels": None}, "no labels"), ({"class_names": None}, "class names")):
        with pytest.raises(ValueError, match=message):
            MethodFactory(seen, None, dataclasses.replace(source, **lacks)).check("gda")


def test_eval_runs_them_on_the_command_line(seen, source):
    printed = soba_command(
        "eval", seen.source, "--methods", "zero-shot,clip+views,tpt", "--model", "tiny",
        "--orders", 2,
    )  # fmt: skip
    assert "tpt" in printed and "clip+views" in printed
    assert "--model" in refused("eval", seen.source, "--methods", "tpt")
    assert "ONNX" in refused("eval", seen.source, "--methods", "tpt", "--model", "soba/tiny")


def test_eval_looks_at_the_files_before_it_loads_a_model(seen, source, tmp_path):
    """A model that does not exist is not even asked for."""
    no_model = ("--model", "no-such-model", "--pretrained", "none")
    short(seen, 5).save(tmp_path / "few.safetensors")
    said = refused("eval", tmp_path / "few.safetensors", "--methods", "tpt", *no_model)
    assert "tpt needs views" in said
    assert "--fallback" in refused("eval", seen.source, "--methods", "difftpt", *no_model)
    other = dataclasses.replace(
        source, encoder_fingerprint="other", class_names=("bat", *source.class_names[1:])
    )
    other.save(tmp_path / "other.safetensors")
    said = refused(
        "eval", seen.source, "--methods", "coop", "--support", tmp_path / "other.safetensors",
        *no_model,
    )  # fmt: skip
    assert "features of different encoders do not mix" in " ".join(said.split())
