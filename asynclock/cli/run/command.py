"""`asynclock run NAME COMMAND…`: runs a command only while a lock is held."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from .._options import (
    ConfigOption,
    MaxTtlOption,
    NodeOption,
    NodeTimeoutOption,
    PrefixOption,
    duration,
)
from .arguments import RunArguments
from .job import run as run_job


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
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="Time after which the lock frees itself if we die; it is renewed. Default: 10s",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="TIME", help="Wait at most this long for the lock."),
    ] = None,
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
        typer.Option(
            metavar="TEXT", help="Message that `inspect`, `top` and waiting callers show."
        ),
    ] = None,
    max_hold: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="Renew the lock for this long at most: then the command is ended.",
        ),
    ] = None,
    at_least: Annotated[
        float | None,
        typer.Option(
            parser=duration,
            metavar="TIME",
            help="Nobody else gets the lock before this time is over, also if the command ends.",
        ),
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
    return run_job(
        RunArguments(
            name=name,
            command=command,
            ttl=ttl,
            timeout=timeout,
            max_ttl=max_ttl,
            max_hold=max_hold,
            at_least=at_least,
            permits=permits,
            message=message,
            shared=shared,
            exclusive=exclusive,
            node_timeout=node_timeout,
            prefix=prefix,
            node=node,
            config=config,
            on_loss=on_loss.value,
            wait_for=wait_for.value,
            no_wait=no_wait,
        )
    )
