"""The options that several commands share, for typer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
NodeTimeoutOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Time that a node has to answer. Default: 0.25"),
]
LongNodeTimeoutOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Time that a node has to answer. Default: 1"),
]
"""For commands whose users can wait longer than locks."""
