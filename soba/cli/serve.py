"""`soba serve`: a classifier that adapts, over HTTP, with its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from threadpoolctl import threadpool_limits

from soba.cli._common import class_names, counted, open_encoder, out, shown
from soba.serve.databases import DURABILITIES, open_database
from soba.serve.options import DEFAULT_STORE, Options

if TYPE_CHECKING:
    from soba.serve.service import Service

Word = TypeVar("Word", bound=str)
_DEFAULT = Options()


def _sets(name: str, help: str, **more: Any) -> Any:
    """An option that a variable of the environment may set, too."""
    variable = "SOBA_" + name.removeprefix("--").upper().replace("-", "_")
    return typer.Option(name, help=help, envvar=variable, **more)


def serve_(
    classes: Annotated[
        str | None, _sets("--classes", "Make a stream of these: cat,dog. More on the page.")
    ] = None,
    classes_file: Annotated[
        Path | None, _sets("--classes-file", "The same from a file: one name a line, or .json.")
    ] = None,
    stream: Annotated[str, _sets("--stream", "What that stream is called.")] = "default",
    store: Annotated[
        str, _sets("--store", "Where streams live: sqlite:///FILE or postgresql://...")
    ] = DEFAULT_STORE,
    durability: Annotated[
        str, _sets("--durability", "full: survives a power cut; normal: a kill; off.")
    ] = "full",
    host: Annotated[str, _sets("--host", "The address to listen on.")] = _DEFAULT.host,
    port: Annotated[
        int, _sets("--port", "0 takes one that is free.", min=0, max=65535)
    ] = _DEFAULT.port,
    allow_host: Annotated[
        list[str] | None,
        _sets("--allow-host", "A name that requests may call this server by; may be repeated."),
    ] = None,
    keys_file: Annotated[
        Path | None,
        _sets(
            "--keys-file",
            "Bearer keys, one a line with a name behind it; read again when it changes. Needed "
            "where others than this machine can reach the server.",
        ),
    ] = None,
    accept_features: Annotated[
        bool, _sets("--accept-features", "Take ready features (.npy), too.")
    ] = _DEFAULT.accept_features,
    model: Annotated[
        str, _sets("--model", "`tiny`, an ONNX folder or file, or open_clip's ViT-B-16/openai.")
    ] = "tiny",
    pretrained: Annotated[
        str | None, _sets("--pretrained", "For a --model without: open_clip tag or weights.")
    ] = None,
    templates: Annotated[
        str | None, _sets("--templates", "Of the stream: single, seven, eighty or 'a {}.'")
    ] = None,
    method: Annotated[str, _sets("--method", "Of the stream: soba+ or another.")] = "soba+",
    device: Annotated[str, _sets("--device", "Of open_clip models: auto, cpu, cuda, mps.")] = (
        "auto"
    ),
    precision: Annotated[
        str, _sets("--precision", "Of open_clip models: fp32, autocast, fp16, bf16.")
    ] = "fp32",
    threads: Annotated[int | None, _sets("--threads", "CPU threads of the encoder.", min=1)] = None,
    min_confidence: Annotated[
        float, _sets("--min-confidence", "Answers below are marked unsure.", min=0.0, max=1.0)
    ] = _DEFAULT.min_confidence,
    batch: Annotated[
        int, _sets("--batch", "Images that are encoded at once.", min=1)
    ] = _DEFAULT.batch,
    max_waiting: Annotated[
        int, _sets("--max-waiting", "Images in work at a time; others get 429.", min=1)
    ] = _DEFAULT.max_waiting,
    max_images: Annotated[
        int, _sets("--max-images", "Images in one request.", min=1)
    ] = _DEFAULT.max_images,
    max_body: Annotated[
        int, _sets("--max-body", "Bytes of one request.", min=1)
    ] = _DEFAULT.max_body,
    max_import: Annotated[
        int, _sets("--max-import", "Bytes of a state that is imported.", min=1)
    ] = _DEFAULT.max_import,
    max_pixels: Annotated[
        int, _sets("--max-pixels", "Pixels of one image.", min=1)
    ] = _DEFAULT.max_pixels,
    max_prompts: Annotated[
        int, _sets("--max-prompts", "Classes times templates of a stream.", min=1)
    ] = _DEFAULT.max_prompts,
    max_streams: Annotated[
        int, _sets("--max-streams", "Streams that one key may make.", min=1)
    ] = _DEFAULT.max_streams,
    max_loaded: Annotated[
        int, _sets("--max-loaded", "Streams in memory.", min=1)
    ] = _DEFAULT.max_loaded,
    idle_seconds: Annotated[
        float, _sets("--idle-seconds", "A stream unused for so long leaves memory.", min=0.0)
    ] = _DEFAULT.idle_seconds,
    sync_seconds: Annotated[
        float, _sets("--sync-seconds", "How old a look may be where replicas learn.", min=0.0)
    ] = _DEFAULT.sync_seconds,
    drain_seconds: Annotated[
        float,
        _sets("--drain-seconds", "Between `not ready` and the end of listening.", min=0.0),
    ] = _DEFAULT.drain_seconds,
    log_format: Annotated[str, _sets("--log-format", "json or text.")] = "text",
    log_level: Annotated[str, _sets("--log-level", "debug, info, warning, error.")] = "info",
) -> None:
    """Serve classifiers that adapt while they answer, with a page to look at them.

    Open the address that it prints. Everything learned is in --store before it is acknowledged;
    end the server in any way and start it again: it goes on. Every option can be set by a variable,
    such as SOBA_PORT. docs/serve.md has the API and what an operator should know.
    """
    try:
        from soba.serve.http.logs import set_up_logs
        from soba.serve.http.run import check_reach, run_server
    except ImportError as error:
        raise ImportError(f"soba serve needs: pip install 'soba-tta[serve]' ({error})") from error

    options = Options(
        host=host,
        port=port,
        allow_hosts=tuple(allow_host or ()),
        keys_file=keys_file,
        accept_features=accept_features,
        min_confidence=min_confidence,
        batch=batch,
        max_waiting=max_waiting,
        max_images=min(max_images, max_waiting),
        max_body=max_body,
        max_import=max_import,
        max_pixels=max_pixels,
        max_prompts=max_prompts,
        max_streams=max_streams,
        max_loaded=max_loaded,
        idle_seconds=idle_seconds,
        sync_seconds=sync_seconds,
        drain_seconds=drain_seconds,
    )
    check_reach(options)
    set_up_logs(one_of("--log-format", log_format, ("json", "text")), log_level)
    database = open_database(store, durability=one_of("--durability", durability, DURABILITIES))
    asked = classes is not None or classes_file is not None
    names = class_names(classes, classes_file) if asked else ()
    encoder = open_encoder(model, pretrained, device, precision, threads)

    def begin(service: Service) -> None:
        if names:
            service.create(stream, names, templates=templates, method=method)

    def ready(address: str) -> None:
        what = f"stream {shown(stream)}, {counted(len(names), 'class')}" if names else "no stream"
        out.print(f"{what}; streams are in {shown(database.name)}", soft_wrap=True)
        out.print(f"soba serves at {address}", soft_wrap=True, highlight=False)
        out.file.flush()

    # Threads of BLAS that wait for the next small product keep a core from the encoder.
    with threadpool_limits(1, user_api="blas"):
        run_server(encoder, database, options, begin=begin, ready=ready)


def one_of(option: str, value: str, known: tuple[Word, ...]) -> Word:
    """The value of an option that takes one of some words."""
    for word in known:
        if value == word:
            return word
    raise ValueError(f"{option} takes {', '.join(known)}, not {value!r}")
