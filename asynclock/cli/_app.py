"""The program: its commands, its options, and the form of errors for users' mistakes."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ._ending import guarded, raise_on_ctrl_c
from ._status import Status
from ._text import say
from .run.arguments import split

app = typer.Typer(
    name="asynclock",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
_HELP = {"-h", "--help"}

COMMANDS = {
    "run": ".run.command",
    "inspect": ".look.inspect",
    "top": ".look.top",
    "doctor": ".doctor.command",
    "nodes": ".nodes",
    "release": ".look.release",
    "serve": ".look.serve",
    "bench": ".bench",
    "demo": ".demo.command",
}
"""The module of each command, which has a function by the command's name."""

_MEANT = {
    **dict.fromkeys(("lock", "acquire", "exec", "with"), "run NAME COMMAND"),
    **dict.fromkeys(("list", "ls", "locks", "ps"), "inspect --all"),
    **dict.fromkeys(("get", "show", "info", "who", "waiters", "queue"), "inspect NAME"),
    **dict.fromkeys(("status", "watch", "monitor"), "top"),
    **dict.fromkeys(("unlock", "free", "kill", "del"), "release NAME"),
    **dict.fromkeys(("check", "health", "ping"), "doctor"),
    **dict.fromkeys(("web", "dashboard"), "serve"),
}
"""What users mean by names of commands that other programs have."""

# The exceptions for users' mistakes. Since about 0.20 typer has its own copy of click.
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
    """Import the command that was named; all commands for help, completion and misspellings."""
    named = [name for name in arguments[:1] if name in COMMANDS]
    for name in named or COMMANDS:
        module = importlib.import_module(COMMANDS[name], __package__)
        app.command(name)(getattr(module, name))


def _hide_types_of_flags(command: Any, parent: Any = None) -> None:
    """Keep help from showing `<bool>` beside each flag, as typer does since about 0.29."""
    context = command.make_context(command.name, [], parent, resilient_parsing=True)
    for option in command.get_params(context):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _hide_types_of_flags(below, context)


def run(arguments: Sequence[str]) -> int:
    """Run the program through typer, and return its exit status."""
    if arguments[:1] == ["run"]:
        ours, command = split(arguments[1:])
        arguments = ["run", *ours, *(["--"] if command and "--" not in ours else []), *command]
    return guarded(lambda: _run(arguments))


def _unknown(word: str) -> Status:
    """Name the command that the user may mean by `word`."""
    near = difflib.get_close_matches(word, COMMANDS, 1)
    meant = _MEANT.get(word.lower()) or "".join(near)
    advice = f"did you mean `asynclock {meant}`? " if meant else ""
    say(f"there is no command {word!r}: {advice}`asynclock --help` lists all commands")
    return Status.USAGE


def _run(arguments: Sequence[str]) -> object:
    if arguments and arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        return _unknown(arguments[0])
    _add_commands(arguments)
    raise_on_ctrl_c()
    program: Any = typer.main.get_command(app)
    if not arguments or not _HELP.isdisjoint(arguments):
        _hide_types_of_flags(program)
    try:
        return program(list(arguments), prog_name="asynclock", standalone_mode=False)
    except _MISTAKES as error:
        error.show()
        return Status.USAGE
    except typer.Abort:
        return Status.INTERRUPTED
