"""The `soba` command, a file per subcommand."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Annotated, Any

try:
    import typer
    from rich.markup import escape
except ImportError:  # the core installs without them
    sys.exit("the soba command needs: pip install 'soba-tta[cli]'")

import soba
from soba.cli._common import err, out
from soba.cli._scale import with_ray_address
from soba.cli.ablate import ablate_
from soba.cli.bench import app as bench
from soba.cli.check import check_
from soba.cli.classify import classify_
from soba.cli.demo import demo_
from soba.cli.doctor import doctor_
from soba.cli.embed import embed_
from soba.cli.eval import eval_
from soba.cli.inspect import inspect_
from soba.cli.learn import learn_
from soba.cli.merge import merge_
from soba.cli.methods import methods_
from soba.cli.predict import predict_
from soba.cli.report import report_
from soba.cli.serve import serve_
from soba.cli.stress import stress_

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Training-free test-time adaptation for CLIP: a zero-shot classifier that gets better "
    "while it runs.",
)


def main() -> None:
    """Run the command; bad input ends with one line and exit code 2, never a traceback."""
    said: set[str] = set()

    def say_once(message: Warning | str, *_: Any, **__: Any) -> None:
        """A warning as a person reads it, without the line of code that it came from."""
        if str(message) not in said:
            said.add(str(message))
            text = escape(str(message))
            err.print(f"[yellow]warning:[/] {text}", soft_wrap=True, highlight=False)

    with warnings.catch_warnings():
        warnings.showwarning = say_once
        _run()


def _run() -> None:
    # A run that is asked to end cleans up behind itself, as it does after Ctrl-C.
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app(with_ray_address(sys.argv[1:]), prog_name=soba.__name__)
    except (ValueError, TypeError, OSError, ImportError) as error:
        problem = " ".join(str(error).split())
        err.print(f"[bold red]error:[/] {escape(problem)}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


def _version(asked: bool) -> None:
    if asked:
        out.print(f"soba {soba.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


app.command("demo")(demo_)
app.command("classify")(classify_)
app.command("serve")(serve_)
app.command("embed")(embed_)
app.command("learn")(learn_)
app.command("merge")(merge_)
app.command("predict")(predict_)
app.command("check")(check_)
app.command("inspect")(inspect_)
app.command("eval")(eval_)
app.command("stress")(stress_)
app.command("ablate")(ablate_)
app.command("report")(report_)
app.add_typer(bench, name="bench")
app.command("methods")(methods_)
app.command("doctor")(doctor_)
