"""Cells, what they are made of, and that nothing is done twice."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
from colours import ColourEncoder, Colours, Patches

import soba
from soba.bench.cells import cells_of, run_cell
from soba.bench.evaluate import evaluate
from soba.bench.places import Model, Places
from soba.bench.plan import Plan
from soba.bench.record import read_record
from soba.bench.run import missing, record_file, run, work
from soba.bench.sources import Census

METHODS = ("zero-shot", "ncm", "tda", "soba+")


def make(results, methods=METHODS, views=1, encoder=None, source=None, **settings):
    plan = Plan(source or Colours(), methods, views=views, **({"orders": 2} | settings))
    encoder = encoder or ColourEncoder()
    return Job(plan, Places(plan.source, Model("colours", lambda: encoder), results))


class Job:
    """A plan and its places."""

    def __init__(self, plan, places):
        self.places, self.cells = places, cells_of(plan, places)

    def work(self):
        return work(self.cells, self.places)

    def run(self, step=lambda what, amount: None):
        return run(self.cells, self.places, step)


def without_seconds(records):
    return [dataclasses.replace(r, seconds=0.0, encode_seconds=None) for r in records]


def test_one_record_a_cell_with_all_that_readers_need(tmp_path):
    job = make(tmp_path)
    work, done = job.work(), []
    records = job.run(lambda what, amount: done.append(amount))
    assert sum(done) == work
    files = list((tmp_path / "records").iterdir())
    assert len(files) == len(records) == 3 * 4 * 2
    assert all(path.suffix == ".json" for path in files)
    assert sorted(map(str, map(read_record, files))) == sorted(map(str, records))
    record = records[2]
    assert (record.benchmark, record.model, record.order) == (
        "colours",
        "colours",
        "shuffled",
    )
    assert (record.dataset, record.method, record.seed) == ("plain", "ncm", 0)
    assert record.encode_seconds > 0 and record.seconds > 0
    assert record.prompts == ["a {} patch.", "something {}."]
    assert record.view_policy == "one view"
    assert len(record.accuracy_over_stream) == 20
    assert np.mean(record.accuracy_over_stream) == pytest.approx(record.accuracy, abs=3)
    assert (record.joined, record.shots, record.listing) == (None, None, None)
    assert (record.left_out, record.expected) == (0, 8 * 12)
    assert (record.device, record.precision, record.dtype) == ("cpu", "fp32", "float16")
    assert record.cpus >= 1
    assert {"python", "numpy", "soba-tta", "pillow"} <= record.versions.keys()
    assert len({r.identity for r in records}) == 3 * 4  # seeds share one
    assert all(int(r.identity, 16) for r in records)
    [features] = (tmp_path / "features").glob("plain-*.safetensors")
    [same] = evaluate(soba.FeatureSet.load(features), ["ncm"], orders=1)
    assert record.accuracy == same.accuracy  # shuffled is evaluate's own order


def test_what_is_there_is_used_and_what_is_missing_is_made(tmp_path):
    encoder = ColourEncoder()
    records = make(tmp_path, encoder=encoder).run()
    encoded = encoder.images_encoded
    for path in sorted((tmp_path / "records").iterdir())[::3]:
        path.unlink()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "records").iterdir()}
    again = make(tmp_path, encoder=encoder)
    assert again.work() == 64 * (len(records) - len(before))
    assert without_seconds(again.run()) == without_seconds(records)
    assert encoder.images_encoded == encoded
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert again.work() == 0
    more = make(tmp_path, encoder=encoder, orders=3).run()
    assert len(more) == 3 * 4 * 3
    assert encoder.images_encoded == encoded


def test_what_is_missing_is_a_difference_of_sets(tmp_path):
    job = make(tmp_path, ("zero-shot", "ncm"))
    assert missing(job.cells, job.places) == job.cells
    some = set(job.cells[1::3])
    run([cell for cell in job.cells if cell in some], job.places)
    assert set(missing(job.cells, job.places)) == set(job.cells) - some
    assert {record_file(cell, job.places) for cell in some} == set((tmp_path / "records").iterdir())
    assert len({cell.file_name for cell in job.cells}) == len(job.cells)


@pytest.mark.parametrize("tune_on", ["paper", "stream"])
def test_a_cell_gives_the_same_record_wherever_it_is_run(tmp_path, tune_on):
    """Cells and places travel as bytes; elsewhere, features and searches are made anew."""
    plan = Plan(Colours(), ("ncm", "gda", "zero"), orders=2, views=3, tune_on=tune_on)
    here = Places(plan.source, Model("colours", ColourEncoder), tmp_path / "here")
    there = dataclasses.replace(here, results=tmp_path / "there")
    there.make()
    cells = cells_of(plan, here)
    records = run(cells, here)
    assert here.loader is not None  # opened, and not to be sent
    sent = [pickle.loads(pickle.dumps((cell, there))) for cell in reversed(cells)]
    assert [cell for cell, _ in sent] == cells[::-1]
    assert len(pickle.dumps((cells[0], here))) < 2000
    elsewhere = [run_cell(cell, places) for cell, places in sent]
    assert without_seconds(elsewhere) == without_seconds(records[::-1])
    assert not list((tmp_path / "there" / "records").iterdir())  # who asks for it keeps it


def test_other_settings_are_other_files(tmp_path):
    make(tmp_path, ("zero-shot",)).run()
    make(tmp_path, ("zero-shot",), views=3, stream_views=True).run()
    other = ColourEncoder()
    other.fingerprint = "colours-2"
    make(tmp_path, ("zero-shot",), encoder=other).run()
    assert len(list((tmp_path / "features").glob("plain-*.safetensors"))) == 3
    assert len(list((tmp_path / "records").iterdir())) == 3 * 3 * 2


def test_a_damaged_record_is_named(tmp_path):
    make(tmp_path, ("zero-shot",)).run()
    path = next((tmp_path / "records").iterdir())
    for damaged in ("{", "{}", '{"accuracy": 90.0}', "[]"):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=rf"{path.name}: not a record.*remove it to run"):
            make(tmp_path, ("zero-shot",)).run()


@pytest.mark.parametrize("damaged", ["{}", '{"alpha": null}', '{"alpha": "much"}', "", "[]"])
def test_a_damaged_search_is_named(tmp_path, damaged):
    make(tmp_path, ("ncm",), orders=1, tune_on="plain").run()
    [path] = (tmp_path / "tuning").iterdir()
    path.write_text(damaged)
    with pytest.raises(ValueError, match=rf"{path.name}: .*remove it to search again"):
        make(tmp_path, ("ncm",), tune_on="plain").run()


@pytest.mark.parametrize(
    "change", [{"templates": ("the {}.",)}, {"source": Colours(per_class=3)}, {"augmix": True}]
)
def test_a_cell_is_run_where_its_features_are(tmp_path, change):
    plan = Plan(Colours(), ("zero-shot",), views=3, stream_views=True)
    places = Places(plan.source, Model("colours", ColourEncoder), tmp_path)
    cell, elsewhere = cells_of(plan, places)[0], dataclasses.replace(places, **change)
    [(_, _, file)] = cell.features
    with pytest.raises(ValueError, match=f"zero-shot on plain was made for the features {file}"):
        run_cell(cell, elsewhere)
    assert not list(tmp_path.iterdir())  # nothing was encoded


def test_two_runs_at_once_do_not_meet(tmp_path):
    def step(what, amount):
        with pytest.raises(ValueError, match="another run is working in this folder"):
            make(tmp_path).run()

    make(tmp_path, ("zero-shot",)).run(step)


@pytest.mark.parametrize("order", ["sequence", "mixed"])
def test_all_domains_as_one_stream(tmp_path, order):
    records = make(tmp_path, ("zero-shot", "soba+"), order=order).run()
    assert len(records) == 4
    for record in records:
        assert (record.dataset, record.order) == ("colours-all", order)
        assert record.samples == 12 * (8 + 8 + 4)
        scores = record.accuracy_per_domain
        assert list(scores) == ["plain", "noisy", "few"]
        assert np.average(list(scores.values()), weights=[8, 8, 4]) == pytest.approx(
            record.accuracy
        )
    assert {tuple(record.joined) for record in records} == {("few", "noisy", "plain")}
    assert {record.expected for record in records} == {12 * (8 + 8 + 4)}
    # Zero-shot: a domain by itself has the same answers, where it has the same classes.
    alone = make(tmp_path, ("zero-shot",)).run()
    by_name = {record.dataset: record.accuracy for record in alone}
    assert records[0].accuracy_per_domain["noisy"] == by_name["noisy"]
    assert records[0].accuracy_per_domain["few"] <= by_name["few"]


def test_joined_streams_of_other_sets_are_other_cells(tmp_path):
    class TwoDomains(Colours):
        datasets = ("plain", "noisy")

    whole = make(tmp_path, ("zero-shot",), order="mixed").run()
    part = make(tmp_path, ("zero-shot",), order="mixed", source=TwoDomains()).run()
    assert [record.joined for record in part] == [["noisy", "plain"]] * 2
    assert {r.dataset for r in whole + part} == {"colours-all"}
    assert not {r.identity for r in whole} & {r.identity for r in part}
    assert len(list((tmp_path / "records").iterdir())) == 4


class Torn(Colours):
    """A source some of whose plain patches cannot be read; two more are missing altogether."""

    torn = (3, 5)

    def images(self, dataset, split):
        image_set = super().images(dataset, split)
        if (dataset, split) != ("plain", "test"):
            return image_set
        torn = self.torn

        class TornPatches(Patches):
            def image(self, index):
                if index in torn:
                    raise OSError(f"patch {index} is torn")
                return super().image(index)

        return TornPatches(
            **{f.name: getattr(image_set, f.name) for f in dataclasses.fields(image_set)}
        )

    def census(self, dataset, split):
        return Census(expected=98) if dataset == "plain" else super().census(dataset, split)


def test_images_left_out_are_counted_and_named_on_every_run(tmp_path):
    class Mended(Torn):
        torn = (5,)

    def run(source, encoder=None):
        job = make(tmp_path, ("zero-shot", "ncm"), source=source, encoder=encoder)
        work, done = job.work(), []
        records = job.run(lambda what, amount: done.append(amount))
        assert sum(done) == work
        broken = {key for _, key in job.places.broken}
        return [r for r in records if r.dataset == "plain"], broken

    first, broken = run(Torn())
    assert broken == {"3.png", "5.png"}
    assert {(r.samples, r.left_out, r.expected) for r in first} == {(94, 4, 98)}
    encoder = ColourEncoder()
    again, broken = run(Torn(), encoder)
    assert (again, broken) == (first, {"3.png", "5.png"})
    assert encoder.images_encoded == 0
    # One of them can be read now: the file is made anew, and so are the cells that were made of it.
    mended, broken = run(Mended(), encoder)
    assert {(r.samples, r.left_out, r.expected) for r in mended} == {(95, 3, 98)}
    assert broken == {"5.png"}
    assert encoder.images_encoded == 1 + 95  # tried, then all
    assert not {r.identity for r in mended} & {r.identity for r in first}
    assert len(list((tmp_path / "records").iterdir())) == 3 * 2 * 2
    assert run(Mended()) == (mended, {"5.png"})


def test_few_shot_methods_get_the_train_set_under_their_own_labels(tmp_path):
    records = make(tmp_path, ("zero-shot", "gda"), orders=1).run()
    score = {(r.dataset, r.method): r.accuracy for r in records}
    for dataset in ("plain", "noisy", "few"):
        assert score[dataset, "gda"] > score[dataset, "zero-shot"]
    assert len(list((tmp_path / "features").glob("*-train-*.safetensors"))) == 1
    assert {(r.method, r.shots) for r in records} == {("zero-shot", None), ("gda", 12)}


def test_methods_on_views_and_on_prompts(tmp_path):
    methods = ("zero-shot", "clip+views", "mta-ensemble-vote")
    records = make(tmp_path, methods, views=6).run()
    assert [(r.method, r.seed) for r in records[:4]] == [
        ("zero-shot", 0),
        ("zero-shot", 1),
        ("clip+views", 0),
        ("mta-ensemble-vote", 0),
    ]
    assert (records[0].views, records[0].view_policy) == (1, "one view")
    assert json.loads(records[2].view_policy)["count"] == records[2].views == 6
    # Cells on one view are those of a run without views.
    assert make(tmp_path, ("zero-shot",)).work() == 0
    [record, *_] = make(tmp_path, ("soba+",), views=6, stream_views=True).run()
    assert record.views == 6
    assert {record.order for record in records} == {"shuffled"}


def test_all_problems_are_found_before_any_work(tmp_path):
    plan = Plan(Colours(), ("mta", "mta-ensemble-vote", "ncm"), order="mixed", tune_on="val")
    assert plan.problems() == [
        "mta: needs 5 views at least: say --views",
        "mta-ensemble-vote: needs 5 views at least: say --views",
        "mta-ensemble-vote: lets the prompts of one set vote; not for mixed",
        "few: no val",
    ]
    with pytest.raises(ValueError, match="no order 'random'; there are: shuffled"):
        Plan(Colours(), ("ncm",), order="random")
    with pytest.raises(ValueError, match="cannot tune on 'imagnet'"):
        Plan(Colours(), ("ncm",), tune_on="imagnet")


def test_tuning_says_what_it_saw(tmp_path):
    def run(tune_on, methods=("zero-shot", "ncm", "gda"), **settings):
        records = make(tmp_path, methods, orders=1, tune_on=tune_on, **settings).run()
        return {(r.dataset, r.method): r for r in records}

    said = {
        tune_on: {key: record.tuned_on for key, record in run(tune_on).items()}
        for tune_on in ("paper", "test", "plain", "stream")
    }
    assert set(said["paper"].values()) == {"paper or given"}
    assert {value[m] for value in said.values() for m in value if m[1] == "zero-shot"} == {
        "paper or given"
    }
    assert said["test"]["noisy", "ncm"] == said["test"]["noisy", "gda"] == "test labels"
    assert said["plain"]["noisy", "ncm"] == "plain"
    assert said["plain"]["plain", "ncm"] == "test labels"  # its own labels: a leak
    assert said["stream"]["noisy", "ncm"] == "stream"
    # The alpha in the record is the best of the search; one search served all three sets.
    [searched] = (tmp_path / "tuning").glob("*-ncm-shuffled-plain-*.json")
    search = json.loads(searched.read_text())
    assert search["scores"][str(search["alpha"])] == max(search["scores"].values())
    used = {r.hyper_parameters["alpha"] for k, r in run("plain").items() if k[1] == "ncm"}
    assert used == {search["alpha"]}
    # What is not tuned is not run again for each way of tuning the others.
    assert len(list((tmp_path / "records").glob("*zero-shot*"))) == 3


class Named(Colours):
    """Patches under the names of two real data sets and one that TDA's authors never saw."""

    datasets = ("dtd", "eurosat", "plain")

    def images(self, dataset, split):
        image_set = super().images("plain" if dataset in ("dtd", "eurosat") else dataset, split)
        return dataclasses.replace(image_set, name=dataset)


def test_tda_has_the_official_constants_of_each_data_set(tmp_path):
    """Unless it is told otherwise, is tuned, or streams all sets as one."""

    def run(**settings):
        records = make(tmp_path, ("tda",), source=Named(), **({"orders": 1} | settings)).run()
        return {r.dataset: r for r in records}

    def constants(records):
        names = ("alpha", "beta")
        return {n: [r.hyper_parameters[k] for k in names] for n, r in records.items()}

    official, fixed = run(), run(fixed_constants=True)
    assert constants(official) == {"dtd": [2, 3], "eurosat": [4, 8], "plain": [2, 5]}
    assert constants(fixed) == {name: [2, 5] for name in Named.datasets}
    assert official["eurosat"].accuracy_over_stream != fixed["eurosat"].accuracy_over_stream
    for name in ("dtd", "eurosat"):
        assert official[name].tuned_on.startswith("official constants per data set, tuned in an")
        assert official[name].tuned_on.endswith("treat as tuned on the test data")
        assert fixed[name].tuned_on == "paper or given"
        assert official[name].identity != fixed[name].identity
    assert official["plain"] == fixed["plain"]  # one cell: no constants are known of it
    assert [r.unlike_the_paper for r in official.values()] == [{}, {}, {}]
    assert fixed["dtd"].unlike_the_paper == {"beta": [5.0, 3.0]}
    assert fixed["eurosat"].unlike_the_paper == {"alpha": [2.0, 4.0], "beta": [5.0, 8.0]}
    joined = run(order="mixed")
    assert constants(joined) == {"colours-all": [2, 5]}
    assert joined["colours-all"].tuned_on == "paper or given"
    tuned = run(tune_on="stream")
    assert {beta for _, beta in constants(tuned).values()} == {5}
    assert {record.tuned_on for record in tuned.values()} == {"stream"}


def test_fixed_constants_where_nothing_else_is_known_are_a_misunderstanding():
    said = ["--fixed-constants: no method here has constants of a data set's own"]
    for settings in (
        {"methods": ("ncm", "soba")},
        {"source": Colours()},
        {"order": "mixed"},
        {"tune_on": "stream"},
    ):
        arguments = {"source": Named(), "methods": ("tda",), "fixed_constants": True} | settings
        assert Plan(**arguments).problems() == said, settings
    assert Plan(Named(), ("tda",), fixed_constants=True).problems() == []


def test_tuning_on_a_validation_split(tmp_path):
    class TwoDomains(Colours):
        datasets = ("plain", "noisy")

    job = make(tmp_path, ("ncm", "gda"), source=TwoDomains(), tune_on="val")
    work, done = job.work(), []
    records = job.run(lambda what, amount: done.append(amount))
    assert sum(done) == work
    assert {record.tuned_on for record in records} == {"val"}
    assert len(list((tmp_path / "features").glob("*-val-*.safetensors"))) == 2
