"""`soba ablate`: what it leaves behind, run after run, and when it is killed."""

from pathlib import Path

import pytest
from killed import killed_at
from run_cli import refused, soba_command

import soba
from soba._files import alone
from soba.report.read import read_results
from soba.studies import ablate
from soba.testing import example_stream


def feature_file(path, seed=0, n=80):
    images, labels, text = example_stream(n=n, classes=4, width=8, seed=seed)
    soba.FeatureSet(images, text, labels=labels).save(path)
    return path


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def files_in(table):
    return list(ablate.summarise(ablate.read_csv(Path(table))))


def test_runs_add_to_each_other():
    first, second = feature_file("a.safetensors"), feature_file("b.safetensors", seed=1)
    soba_command("ablate", "reading", first, "--orders", 2, "-o", "r/ablations")
    alone = ablate.read_csv(Path("r/ablations/reading.csv"))
    printed = soba_command("ablate", "reading", second, "--orders", 1, "-o", "r/ablations")
    both = ablate.read_csv(Path("r/ablations/reading.csv"))
    assert both[: len(alone)] == alone and len(both) == len(alone) * 3 // 2
    assert "6 streams, with earlier ones 18, in r/ablations/reading.csv" in printed
    picture = Path("r/ablations/reading.svg").read_text()
    assert "<!-- a -->" in picture and "<!-- b -->" in picture
    assert len(read_results(Path("r")).ablations["reading"]) == 18
    # Once more with fewer orders: its rows take the place of their like, the others stay.
    soba_command("ablate", "reading", first, "--orders", 1, "-o", "r/ablations")
    again = ablate.read_csv(Path("r/ablations/reading.csv"))
    assert [(r.file, r.setting, r.seed, r.accuracy) for r in again] == [
        (r.file, r.setting, r.seed, r.accuracy) for r in both
    ]


def test_another_file_of_the_same_name_is_refused():
    Path("x").mkdir()
    soba_command("ablate", "reading", feature_file("a.safetensors"), "--orders", 1)
    before = Path("ablations/reading.csv").read_bytes()
    said = refused("ablate", "reading", feature_file("x/a.safetensors", seed=3), "--orders", 1)
    assert "ablations/reading.csv" in said and "another file called a" in said
    assert Path("ablations/reading.csv").read_bytes() == before


@pytest.mark.parametrize("content", ["", "ablation,file\n", "half"])
def test_a_damaged_table_is_named_before_the_work_and_kept(content):
    Path("ablations").mkdir()
    Path("ablations/reading.csv").write_text(content)
    said = refused("ablate", "reading", feature_file("a.safetensors"))
    assert "ablations/reading.csv" in said
    assert Path("ablations/reading.csv").read_text() == content


def test_a_table_of_another_ablation_is_refused():
    soba_command("ablate", "reading", feature_file("a.safetensors"), "--orders", 1)
    Path("ablations/reading.csv").rename("ablations/refresh.csv")
    assert "refresh.csv: holds results of reading" in refused("ablate", "refresh", "a.safetensors")


def test_a_killed_run_keeps_the_files_it_had_done():
    files = (feature_file("a.safetensors"), feature_file("late.safetensors"))
    killed_at("ablations", "refresh.csv", 1, "ablate", "refresh", *files, "--orders", 1)
    assert files_in("ablations/refresh.csv") == ["a"]
    soba_command("ablate", "refresh", feature_file("b.safetensors", seed=1), "--orders", 1)
    assert files_in("ablations/refresh.csv") == ["a", "b"]


def test_names_are_shown_as_they_are():
    feature_file("pets[val].safetensors")
    odd = feature_file("$x$_^[b]bold.safetensors", seed=1)
    Path("[red]").mkdir()
    printed = soba_command(
        "ablate", "reading", "pets[val].safetensors", odd, "--orders", 1, "-o", "[red]"
    )
    head = next(line for line in printed.splitlines() if "method" in line)
    assert "pets[val]" in head and "$x$_^[b]bold" in head
    assert "in [red]/reading.csv, [red]/reading.png, [red]/reading.svg" in printed
    assert files_in("[red]/reading.csv") == ["pets[val]", "$x$_^[b]bold"]


def test_what_is_left_out_is_named_as_it_is():
    feature_file("pets[val].safetensors", n=2001)
    printed = soba_command("ablate", "refresh", "pets[val].safetensors", "--orders", 1)
    assert "pets[val].safetensors: left out every sample, more than 2000 refreshes" in printed


def test_the_table_says_over_how_many_orders():
    first, second = feature_file("a.safetensors"), feature_file("b.safetensors")
    printed = soba_command("ablate", "reading", first, "--orders", 2)
    assert "mean over 2 orders" in " ".join(printed.split())
    printed = soba_command("ablate", "reading", first, second, "--orders", 1)
    assert "mean over 1 to 2 orders" in " ".join(printed.split())


def test_two_files_of_one_name_are_refused():
    Path("x").mkdir()
    files = (feature_file("a.safetensors"), feature_file("x/a.safetensors", seed=1))
    assert "the same name" in refused("ablate", "reading", *files)
    assert not Path("ablations").exists()


def test_two_runs_at_once_do_not_write_over_each_other():
    Path("ablations").mkdir()
    with alone(Path("ablations")):
        assert "another run" in refused(
            "ablate", "reading", feature_file("a.safetensors"), "--orders", 1
        )
    soba_command("ablate", "reading", "a.safetensors", "--orders", 1)
