"""The program for typer: its commands, the options that they share, the form of users' mistakes.

`run` and `inspect` are here too: their modules read their arguments and work without typer, which
only shows their help and explains mistakes.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ._output import Status, guarded, raise_on_ctrl_c, say
from ._settings import CONFIG, NODES, duration

app = typer.Typer(
    name="asynclock",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
_HELP = {"-h", "--help"}

COMMANDS = {
    "run": "._app",
    "inspect": "._app",
    "top": ".top",
    "doctor": ".doctor",
    "nodes": ".nodes",
    "release": ".release",
    "serve": ".serve",
    "bench": ".bench",
    "demo": ".demo",
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


def run_program(arguments: Sequence[str]) -> int:
    """Run the program through typer, and return its exit status."""
    if arguments[:1] == ["run"]:
        from .run import split

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
    if not arguments or not _HELP.isdisjoint(arguments):  # it takes some milliseconds
        _hide_types_of_flags(program)
    try:
        return program(list(arguments), prog_name="asynclock", standalone_mode=False)
    except _MISTAKES as error:
        error.show()
        return Status.USAGE
    except typer.Abort:
        return Status.INTERRUPTED


# ---- Options that several commands share ---------------------------------------------------------


NodeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="URL",
        help=f"A Redis node; repeat it for each. Default: ${NODES} (comma separated).",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=f"Settings as TOML. Default: ${CONFIG}."),
]
PrefixOption = Annotated[
    str | None, typer.Option(help="Prefix of each key in Redis. Default: asynclock:")
]


def _duration(text: str) -> float:
    """Read a duration for typer."""
    try:
        return duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _time(text: str) -> Any:
    return typer.Option(parser=_duration, metavar="TIME", help=text)


NodeTimeoutOption = Annotated[float | None, _time("A node's time to answer. Default: 250ms")]
LongNodeTimeoutOption = Annotated[float | None, _time("A node's time to answer. Default: 1s")]
"""For commands whose users can wait longer than locks."""
MaxTtlOption = Annotated[float | None, _time("The longest ttl of all users of these nodes.")]


def _guard(word: str) -> bool | str:
    # `connect` refuses other words.
    return {"on": True, "off": False}.get(word, word)


def _acks(word: str) -> int | str:
    return int(word) if word.isdecimal() else word


RestartGuardOption = Annotated[
    Any,
    typer.Option(parser=_guard, metavar="on|off|disk", help="The services' restart guard."),
]
AcksOption = Annotated[
    Any, typer.Option(parser=_acks, metavar="N|majority|all", help="The services' acks.")
]


# ---- asynclock run -------------------------------------------------------------------------------


class OnLoss(StrEnum):
    """What to do with the command when its lock is lost."""

    kill = "kill"
    warn = "warn"


class WaitFor(StrEnum):
    """The processes that must end before the lock is released."""

    group = "group"
    command = "command"


def run(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lock.", show_default=False)],
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="What to run under it.", show_default=False),
    ],
    ttl: Annotated[
        float | None,
        _time("Time after which the lock frees itself if we die; it is renewed. Default: 10s"),
    ] = None,
    timeout: Annotated[float | None, _time("Wait at most this long for the lock.")] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the lock.")] = False,
    permits: Annotated[
        int | None,
        typer.Option(metavar="N", help="Let N commands run under this name at the same time."),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Run beside other --shared, not beside --exclusive.")
    ] = False,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="Run beside no --shared and no --exclusive.")
    ] = False,
    message: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A text for `inspect`, `top` and waiting callers."),
    ] = None,
    max_hold: Annotated[
        float | None,
        _time(
            "Renew the lock for this long at most, or for its first ttl if that is longer: then "
            "the command is ended."
        ),
    ] = None,
    at_least: Annotated[
        float | None,
        _time("Nobody else gets the lock before this time is over, also if the command ends."),
    ] = None,
    on_loss: Annotated[
        OnLoss, typer.Option(help="Whether to end the command when the lock is lost.")
    ] = OnLoss.kill,
    wait_for: Annotated[
        WaitFor,
        typer.Option(
            help="Whether the lock is held until all processes of the command's group have "
            "ended, or only the command itself."
        ),
    ] = WaitFor.group,
    max_ttl: MaxTtlOption = None,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: NodeTimeoutOption = None,
) -> int:
    """Run a command while holding a lock.

    Put our options before the command; all words after its first word belong to the command.

    The command gets our terminal and our signals, and finds ASYNCLOCK_NAME, ASYNCLOCK_FENCE,
    ASYNCLOCK_OWNER and ASYNCLOCK_DEADLINE in its environment. If the lock can't be renewed, the
    command gets SIGTERM, and SIGKILL before another holder could get the lock.

    A TIME is a number of seconds, or numbers with units: 250ms, 30s, 5m, 1h30m.

    The exit status is the command's own (128+n if signal n ended it), or one of ours:
    64 wrong usage, 69 too few nodes answer, 70 the lock was lost, 75 another holder has the lock,
    126 the command can't be executed, 127 the command was not found.

    Examples:

        asynclock run nightly-report ./report.sh --all
        asynclock run migrate --no-wait -- alembic upgrade head
        asynclock run deploy --timeout 5m --ttl 30s -- sh -c 'build && push'
        asynclock run encode --permits 3 --max-hold 2h -- ./encode.sh film.mkv
    """
    given = locals()
    from .run import RunArguments, run_job

    return run_job(RunArguments(**given))


# ---- asynclock inspect ---------------------------------------------------------------------------


def inspect(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The lock.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="All that is held or shared.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    node: NodeOption = None,
    config: ConfigOption = None,
    prefix: PrefixOption = None,
    node_timeout: LongNodeTimeoutOption = None,
) -> int:
    """Show who holds a lock, or everything that is held or shared.

    It shows for each node the owner, the seconds until the node frees the name by itself, and the
    highest fence; for an event, latch or barrier its state. Listing reads the keys in small pages
    (SCAN) and blocks no server.

    The exit status is 69 if too few nodes answered.

    Examples:

        asynclock inspect nightly-report
        asynclock inspect --all
        asynclock inspect --all --json | jq '.locks[] | select(.agreed | not)'
    """
    from .inspect import InspectArguments, show

    return show(InspectArguments(name, all_, json, node, config, prefix, node_timeout))
