"""The options that several commands share, for typer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
