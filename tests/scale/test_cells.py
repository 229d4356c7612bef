"""Records of a benchmark are the same, whoever makes them."""

import dataclasses
from functools import partial

from colours import ColourEncoder, Colours, Patches

from soba.bench.cells import cells_of
from soba.bench.places import Model, Places
from soba.bench.plan import Plan
from soba.bench.run import missing, run
from soba.scale.cells import records_by
from soba.scale.run import Here


class Elsewhere(Here):
    """A worker whose places are a copy: what it finds broken is not known here unless it says."""

    def spread(self, make_worker, items):
        function, (places,) = make_worker.func, make_worker.args
        return map(function(dataclasses.replace(places)), items)


class Backwards(Here):
    """Workers who are done in another order than they were asked."""

    def spread(self, make_worker, items):
        return map(make_worker(), reversed(items))


def records_in(place, *make_records, source=None):
    plan = Plan(source or Colours(), ("zero-shot", "ncm", "soba+"), orders=2)
    places = Places(plan.source, Model("colours", ColourEncoder), place)
    cells = cells_of(plan, places)
    records = run(cells, places, lambda what, amount: None, *make_records)
    assert missing(cells, places) == []
    plain = [dataclasses.replace(r, seconds=0.0, encode_seconds=None) for r in records]
    return plain, places


def test_workers_make_the_records_that_one_process_makes(tmp_path):
    here, _ = records_in(tmp_path / "here")
    spread, _ = records_in(tmp_path / "spread", partial(records_by, Backwards()))
    assert len(here) == 3 * 3 * 2 and spread == here


def test_what_workers_could_not_read_is_said(tmp_path):
    @dataclasses.dataclass(frozen=True, eq=False)
    class TornPatches(Patches):
        def image(self, index):
            if index == 3:
                raise OSError("torn")
            return super().image(index)

    class Torn(Colours):
        def images(self, dataset, split):
            whole = super().images(dataset, split)
            return TornPatches(
                **{f.name: getattr(whole, f.name) for f in dataclasses.fields(whole)}
            )

    _, places = records_in(tmp_path, partial(records_by, Elsewhere()), source=Torn())
    assert {key for _, key in places.broken} == {"3.png"}
