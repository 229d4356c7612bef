"""`soba embed`: images -> a feature file, resumable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from soba.cli._common import (
    Batch,
    Classes,
    Device,
    Model,
    Precision,
    Pretrained,
    Templates,
    Threads,
    check_folder,
    class_names,
    counted,
    err,
    open_encoder,
    out,
    say_broken,
    shown,
    speed_bar,
)
from soba.cli._embed_shards import embed_shards, refuse_options
from soba.cli._scale import RayOption, ShardOption
from soba.datasets import NAMES, ImageSet, load_images, survey
from soba.datasets.folder import from_folder
from soba.datasets.icons import DOMAINS, IconSet, icons
from soba.encode.encoder import TINY, Encoder
from soba.encode.extract import Extraction
from soba.encode.files import is_remote
from soba.encode.generated import GeneratedViews
from soba.encode.image_files import matching, some
from soba.encode.lists import expand_braces
from soba.encode.prompts import read_class_names, templates
from soba.encode.views import ViewMaker, Views


def embed_(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of class folders or of images, a pattern such as 'shots/**/*.jpg', a "
            ".csv or .txt of paths, tars or .parquet files of images (one, a folder or a pattern "
            "of them, 'train-{000..015}.tar'); any of these at s3://, gs://, file:// and the "
            "like, where folders and tables give no labels; in shards, .npy files of features, "
            "too. Or `icons-DOMAIN`, or one of the 15 data sets by name, with --data.",
            metavar="SOURCE|DATASET",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FEATURES",
            help="The .safetensors to write; in shards, the folder.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="The folder that holds the data sets, as CoOp lays them out."),
    ] = None,
    split: Annotated[str, typer.Option(help="Of a data set: test, train or val.")] = "test",
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Of a data set: go on where images are missing.")
    ] = False,
    labelled: Annotated[
        bool | None,
        typer.Option(
            "--labelled/--unlabelled",
            help="Of a folder with images and folders: the folders are classes, or all images "
            "are taken without labels.",
            show_default=False,
        ),
    ] = None,
    classes: Classes = None,
    classes_file: Annotated[
        Path | None, typer.Option(help="Class names, for a folder whose own do not serve.")
    ] = None,
    shard: ShardOption = None,
    shards: Annotated[
        bool, typer.Option("--shards", help="Write all shards of the source, from this process.")
    ] = False,
    shard_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images of a shard, 10,000 by default; a tar or a Parquet file is one as it is.",
        ),
    ] = None,
    ray: RayOption = None,
    per_class: Annotated[
        int | None, typer.Option(min=1, help="Images per class of icons; default: 20.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of icons and of views; default: 0.")
    ] = None,
    views: Annotated[int, typer.Option(min=1, help="Views per image; the TPT family: 64.")] = 1,
    augmix: Annotated[bool, typer.Option("--augmix", help="Distort and mix the views.")] = False,
    generated: Annotated[
        Path | None,
        typer.Option(help="A folder of generated images for each image, for difftpt: IMAGE/*.png."),
    ] = None,
    generated_count: Annotated[
        int | None, typer.Option(min=1, help="How many of them; default: 63.")
    ] = None,
    model: Model = "tiny",
    pretrained: Pretrained = None,
    prompt: Templates = None,
    batch: Batch = 64,
    device: Device = "auto",
    precision: Precision = "fp32",
    threads: Threads = None,
) -> None:
    """Encode images once, to adapt on them as often as you like.

    Kill it at any time and run it again: it goes on where it was and ends in the same bytes;
    pictures that were replaced under their names are encoded anew. The features are stored in half
    precision with the text classifier, labels where known, and the encoder's fingerprint, so that
    files of different encoders are never mixed.

    With --shard, --shards or --ray a folder is written, a Parquet file of features for each shard
    of the source: folders, lists, tars, Parquet files of images, or ready features, here or at
    s3://, gs:// and the like. `soba learn`, `soba merge` and `soba predict` go on from there.
    """
    if shard is not None or shards or ray is not None:
        refuse_options(
            {
                "--data": data is not None,
                "--split": split != "test",
                "--incomplete": incomplete,
                "--labelled": labelled is not None,
                "--views": views > 1,
                "--augmix": augmix,
                "--generated": generated is not None,
                "--generated-count": generated_count is not None,
                "--per-class": per_class is not None,
                "--seed": seed is not None,
            }
        )
        embed_shards(
            source,
            output,
            class_names(classes, classes_file),
            prompt,
            shard=shard,
            shard_size=shard_size or 10_000,
            ray=ray,
            model=model,
            pretrained=pretrained,
            batch=batch,
            device=device,
            precision=precision,
            threads=threads,
        )
        return
    if classes is not None:
        raise ValueError("--classes goes with --shard, --shards or --ray; here say --classes-file")
    if shard_size is not None:
        raise ValueError("--shard-size goes with --shard, --shards or --ray")
    check_folder(output)
    images = open_images(
        source,
        data,
        split,
        incomplete=incomplete,
        labelled=labelled,
        classes_file=classes_file,
        per_class=per_class or 20,
        seed=seed or 0,
    )
    encoder = open_encoder(model, pretrained, device, precision, threads)
    crops = Views(views, augmix, encoder.preprocess, seed or 0)
    extraction = Extraction(
        encoder,
        images,
        images.class_names,
        _templates(prompt, images, encoder),
        labels=images.labels,
        batch=batch,
        views=_view_maker(crops, images, generated, generated_count or 63),
        allow_duplicates=source in NAMES,  # ImageNet says missile and sunglasses twice
    )
    _extract(extraction, images, output)


def _view_maker(
    crops: Views, images: ImageSet, generated: Path | None, count: int
) -> ViewMaker | None:
    """What makes the views of an image; None where the image is the only one."""
    if generated is None:
        return crops if crops.count > 1 else None
    maker = GeneratedViews(crops, generated, count)
    maker.check(images.keys)
    return maker


def _extract(extraction: Extraction, images: ImageSet, output: Path) -> None:
    """Run it, and say what came of it."""
    try:
        with speed_bar() as progress:
            task = progress.add_task("images", total=len(images))
            features = extraction.run(
                output, step=lambda done, total: progress.update(task, completed=done, total=total)
            )
    except (KeyboardInterrupt, SystemExit):  # Ctrl-C, SIGTERM
        err.print("interrupted: what is done is kept, the same command goes on")
        raise
    for indices, what in (
        (extraction.changed, "replaced since the last run, and encoded anew"),
        (extraction.gone, "not there any more, their features are kept"),
    ):
        if indices:
            keys = shown(some([images.keys[i] for i in indices]))
            err.print(f"{what}: {keys}", soft_wrap=True, highlight=False)
    if extraction.broken:
        say_broken({images.keys[i]: why for i, why in sorted(extraction.broken.items())})
    shape = " x ".join(map(str, features.image_features.shape))
    labels = "" if features.labels is None else ", labelled"
    out.print(
        f"{shape} features{labels}, {counted(features.n_classes, 'class')}, in {shown(output)}",
        soft_wrap=True,
        highlight=False,
    )


def _templates(prompt: str | None, images: ImageSet, encoder: Encoder) -> tuple[str, ...]:
    """What is asked for; else what the tiny CLIP was taught, or what the data set is known by."""
    if prompt is None and (encoder.name != TINY or isinstance(images, IconSet)):
        return images.templates
    return templates(prompt or "icon")


def open_images(
    source: str,
    data: Path | None = None,
    split: str = "test",
    *,
    incomplete: bool = False,
    labelled: bool | None = None,
    classes_file: Path | None = None,
    per_class: int = 20,
    seed: int = 0,
) -> ImageSet:
    """The image set that a person names."""
    kind, _, domain = source.partition("-")
    if kind == "icons" and domain in DOMAINS:
        return icons(domain, per_class, seed=seed)
    if source in NAMES:
        if data is None:
            raise ValueError(f"{source}: say with --data which folder holds the data sets")
        return _data_set(source, data, split, incomplete)
    if not is_remote(source) and not _is_there(source):
        known = ", ".join([f"icons-{name}" for name in DOMAINS] + list(NAMES))
        raise ValueError(f"{source}: no such folder, and no data set of that name: {known}")
    names = None if classes_file is None else read_class_names(classes_file)
    if labelled is None:
        images = load_images(source, names)
    else:
        images = from_folder(source, names, labelled=labelled)
    if not images.class_names:
        raise ValueError(f"{source}: has no class folders; name the classes with --classes-file")
    return images


def _is_there(source: str) -> bool:
    """Whether a path, pattern or braces stand for any file."""
    paths = expand_braces(source)
    return any(os.path.exists(file) for path in paths for file in matching(path, bool))


def _data_set(name: str, data: Path, split: str, incomplete: bool) -> ImageSet:
    """One of the benchmarks' sets, if it is that of the literature."""
    surveyed = survey(name, data, split)
    wrong = [*surveyed.problems, *(() if incomplete else surveyed.gaps)]
    if surveyed.image_set is None or wrong:
        way_on = "" if incomplete else "; --incomplete goes on where images are missing"
        raise ValueError(
            f"{name}: the {split} split is not that of the literature: {'; '.join(wrong)}{way_on}"
        )
    for line in (*surveyed.gaps, *surveyed.remarks):
        err.print(f"[yellow]{name}: {shown(line)}[/]", soft_wrap=True, highlight=False)
    return surveyed.image_set
