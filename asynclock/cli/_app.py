"""The program: its commands, its options, and what a user's mistake looks like."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ..errors import AsyncLockError
from ._output import say
from ._status import Status, lines_of, status_of

app = typer.Typer(
    name="asynclock",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

COMMANDS = ("run", "inspect", "top", "doctor", "release", "serve", "bench", "demo")
"""Each is a module of this package with `add_to`, imported when it is needed."""

# A user's mistake. typer brings its own copy of click since 0.20 or so, and used click before.
_MISTAKES: Any = next(one for one in typer.BadParameter.__mro__ if one.__name__ == "ClickException")


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            version = importlib.metadata.version("asynclock")
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed)"
        typer.echo(f"asynclock {version}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Distributed locks on Redis, from the command line."""


def _add_commands(arguments: Sequence[str]) -> None:
    """Import the command that was named; all of them for help, completion and typing errors."""
    first = arguments[0] if arguments else ""
    there = [name for name in COMMANDS if importlib.util.find_spec(f".{name}", __package__)]
    for name in (first,) if first in there else there:
        importlib.import_module(f".{name}", __package__).add_to(app)


def run(arguments: Sequence[str]) -> int:
    """Run the program. → its exit status; no traceback for a user's mistake."""
    try:
        _add_commands(arguments)
        answer = app(list(arguments), prog_name="asynclock", standalone_mode=False)
        sys.stdout.flush()
    except _MISTAKES as error:
        error.show()
        return Status.USAGE
    except AsyncLockError as error:
        for line in lines_of(error):
            say(line)
        return status_of(error)
    except (KeyboardInterrupt, typer.Abort):
        return Status.INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output (head, less) has enough; Python must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    return answer if isinstance(answer, int) else Status.OK
