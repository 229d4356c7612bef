"""The part of `soba embed` that works in shards: arguments and printing only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from soba.cli._common import counted, open_encoder, out, say_broken, shown, speed_bar
from soba.cli._scale import gpus_of, part_of, refuse_both, working
from soba.encode.encoder import TINY, load_encoder
from soba.encode.prompts import templates
from soba.scale.embed import Embedded, Embedder
from soba.scale.folder import ShardFolder


def refuse_options(options: Mapping[str, bool]) -> None:
    """An option that would be ignored is a misunderstanding."""
    for option, was_given in options.items():
        if was_given:
            raise ValueError(
                f"{option} has no place in shards: they are of unlabelled images, a view each"
            )


def embed_shards(
    source: str,
    output: Path,
    names: tuple[str, ...],
    prompt: str | None,
    *,
    shard: str | None,
    shard_size: int,
    ray: str | None,
    model: str,
    pretrained: str | None,
    batch: int,
    device: str,
    precision: str,
    threads: int | None,
) -> None:
    """Write a feature file for each shard of a source."""
    refuse_both(shard, ray)
    encoder = open_encoder(model, pretrained, device, precision, threads)
    prompts = templates(prompt or ("icon" if encoder.name == TINY else "single"))
    folder = ShardFolder.make(output, source, encoder, names, prompts, shard_size=shard_size)
    numbers = part_of(folder, shard)
    opener = partial(
        load_encoder, model, pretrained, device=device, precision=precision, threads=threads
    )
    gpus = gpus_of(encoder.device)
    results: list[Embedded] = []
    with working(ray, cpus=threads or 1, gpus=gpus) as runner, speed_bar() as progress:
        counts = [folder.manifest.shards[number].count for number in numbers]
        total = None if None in counts else sum(count or 0 for count in counts)
        task = progress.add_task("images", total=total)
        advance = partial(progress.advance, task)
        here = partial(Embedder, folder, lambda: encoder, batch, advance)
        elsewhere = partial(Embedder, folder, opener, batch)
        make_worker = here if ray is None else elsewhere
        for result in runner.spread(make_worker, numbers):
            results.append(result)
            if ray is not None:  # nobody has counted its images yet
                advance(result.rows + len(result.broken))
    _say(results, folder, len(numbers))


def _say(results: Iterable[Embedded], folder: ShardFolder, shards: int) -> None:
    results = sorted(results, key=lambda result: result.number)
    broken = {each.key: each.error for result in results for each in result.broken}
    if broken:
        say_broken(broken, listed_in=folder.path)
    there = sum(result.was_there for result in results)
    before = f", {there} of them from an earlier run" if there else ""
    rows = counted(sum(result.rows for result in results), "image")
    out.print(
        f"{rows} in {counted(shards, 'shard')} of {len(folder.manifest.shards)}{before}, in "
        f"{shown(folder.path)}",
        soft_wrap=True,
        highlight=False,
    )
