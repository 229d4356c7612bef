"""`soba embed`: images -> a feature file, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from soba.cli._common import (
    Batch,
    Device,
    Model,
    Precision,
    Pretrained,
    Templates,
    Threads,
    check_folder,
    open_encoder,
    out,
    say_broken,
    shown,
    speed_bar,
)
from soba.datasets import NAMES, ImageSet, load, load_images
from soba.datasets.icons import DOMAINS, IconSet, icons
from soba.encode.encoder import Encoder
from soba.encode.extract import Extraction
from soba.encode.generated import GeneratedViews
from soba.encode.load import TINY
from soba.encode.prompts import read_class_names, templates
from soba.encode.views import ViewMaker, Views


def embed_(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of class folders or of images, a .csv, `icons-DOMAIN`, or one of the "
            "15 data sets by name, with --data.",
            metavar="FOLDER|DATASET",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FEATURES", help="The .safetensors to write.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="The folder that holds the data sets, as CoOp lays them out."),
    ] = None,
    split: Annotated[str, typer.Option(help="Of a data set: test, train or val.")] = "test",
    classes_file: Annotated[
        Path | None, typer.Option(help="Class names, for a folder whose own do not serve.")
    ] = None,
    per_class: Annotated[int, typer.Option(min=1, help="Images per class of icons.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of icons and of views.")] = 0,
    views: Annotated[int, typer.Option(min=1, help="Views per image; the TPT family: 64.")] = 1,
    augmix: Annotated[bool, typer.Option("--augmix", help="Distort and mix the views.")] = False,
    generated: Annotated[
        Path | None,
        typer.Option(help="A folder of generated images for each image, for difftpt: IMAGE/*.png."),
    ] = None,
    generated_count: Annotated[int, typer.Option(min=1, help="How many of them.")] = 63,
    model: Model = "tiny",
    pretrained: Pretrained = None,
    prompt: Templates = None,
    batch: Batch = 64,
    device: Device = "auto",
    precision: Precision = "fp32",
    threads: Threads = None,
) -> None:
    """Encode images once, to adapt on them as often as you like.

    Kill it at any time and run it again: it goes on where it was and ends in the same bytes. The
    features are stored in half precision with the text classifier, labels where known, and the
    encoder's fingerprint, so that files of different encoders are never mixed.
    """
    check_folder(output)
    images = open_images(source, data, split, classes_file, per_class, seed)
    encoder = open_encoder(model, pretrained, device, precision, threads)
    crops = Views(views, augmix, encoder.preprocess, seed)
    maker: ViewMaker | None = crops if views > 1 else None
    if generated is not None:
        maker = GeneratedViews(crops, generated, generated_count)
        maker.check(images.keys)
    made = Extraction(
        encoder,
        images,
        images.class_names,
        _templates(prompt, images, encoder),
        labels=images.labels,
        batch=batch,
        views=maker,
        allow_duplicates=source in NAMES,  # ImageNet says missile and sunglasses twice
    )
    with speed_bar() as progress:
        task = progress.add_task("images", total=len(images))
        features = made.run(
            output, step=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if made.broken:
        say_broken({images.keys[i]: why for i, why in sorted(made.broken.items())})
    shape = " x ".join(map(str, features.image_features.shape))
    labelled = "" if features.labels is None else ", labelled"
    out.print(
        f"{shape} features{labelled}, {features.classes} classes, in {shown(output)}",
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
        return load(source, data, split)
    if not Path(source).exists():
        known = ", ".join([f"icons-{name}" for name in DOMAINS] + list(NAMES))
        raise ValueError(f"{source}: no such folder, and no data set of that name: {known}")
    names = None if classes_file is None else read_class_names(classes_file)
    images = load_images(source, names)
    if not images.class_names:
        raise ValueError(f"{source}: has no class folders; name the classes with --classes-file")
    return images
