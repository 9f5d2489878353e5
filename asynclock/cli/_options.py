"""The options that several commands share, for typer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ._arguments import seconds
from ._sources import CONFIG, NODES

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


def duration(text: str) -> float:
    """Read a duration for typer; see `seconds`."""
    try:
        return seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


NodeTimeoutOption = Annotated[
    float | None,
    typer.Option(parser=duration, metavar="TIME", help="A node's time to answer. Default: 250ms"),
]
LongNodeTimeoutOption = Annotated[
    float | None,
    typer.Option(parser=duration, metavar="TIME", help="A node's time to answer. Default: 1s"),
]
"""For commands whose users can wait longer than locks."""
MaxTtlOption = Annotated[
    float | None,
    typer.Option(
        parser=duration, metavar="TIME", help="The longest ttl of all users of these nodes."
    ),
]


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
