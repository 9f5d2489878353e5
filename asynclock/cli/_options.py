"""Which nodes, and with which settings: options, environment, a TOML file.

Nodes come from the first of these that names any: `--node`, `--config`, `ASYNCLOCK_NODES`,
`ASYNCLOCK_CONFIG`. Other settings come from options, then from the file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigurationError
from ..manager import LockManager, connect

NODES, CONFIG = "ASYNCLOCK_NODES", "ASYNCLOCK_CONFIG"
_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "nodes": list,
    "prefix": str,
    "ttl": (int, float),
    "max_ttl": (int, float),
    "node_timeout": (int, float),
    "acks": (int, str),
    "label": str,
    "restart_guard": bool,
    "clock_guard": bool,
    "strict": bool,
}

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
    str | None, typer.Option(help="What comes before each key in Redis. Default: asynclock:")
]
NodeTimeoutOption = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="How long a node may take to answer. Default: 0.25"),
]


@dataclass(frozen=True)
class Settings:
    """Where the locks are: what `connect` takes."""

    nodes: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """What comes before each key."""
        return str(self.options.get("prefix", "asynclock:"))

    def connect(self, **more: Any) -> LockManager:
        """A manager; what is None in `more` is left to the settings. Raises ConfigurationError."""
        given = {key: value for key, value in more.items() if value is not None}
        return connect(*self.nodes, **{**self.options, **given})


def load(
    node: Sequence[str] | None,
    config: Path | None,
    *,
    prefix: str | None = None,
    node_timeout: float | None = None,
) -> Settings:
    """The settings that options, environment and file add up to. Raises ConfigurationError."""
    named = tuple(url for one in node or () for url in split(one))
    from_file: dict[str, Any] = {}
    if config is not None:
        from_file = read(config)
        named = named or tuple(from_file.get("nodes", ()))
    named = named or split(os.environ.get(NODES, ""))
    if config is None and os.environ.get(CONFIG):
        from_file = read(Path(os.environ[CONFIG]))
        named = named or tuple(from_file.get("nodes", ()))
    if not named:
        raise ConfigurationError(
            f"no nodes: give --node redis://host (repeat it), set ${NODES}, or name a TOML file "
            f"with --config or ${CONFIG}"
        )
    options = {key: value for key, value in from_file.items() if key != "nodes"}
    for key, value in (("prefix", prefix), ("node_timeout", node_timeout)):
        if value is not None:
            options[key] = value
    return Settings(named, options)


def split(text: str) -> tuple[str, ...]:
    """URLs between commas; a comma inside a URL (sentinel, cluster) is followed by no scheme."""
    parts = re.split(r"\s*,\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)", text.strip().strip(","))
    return tuple(part.strip() for part in parts if part.strip())


def read(file: Path) -> dict[str, Any]:
    """A TOML file with the names of `connect`'s parameters. Raises ConfigurationError."""
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is no TOML: {error}") from None
    for key, value in found.items():
        wanted = _KEYS.get(key)
        if wanted is None:
            raise ConfigurationError(f"{file}: unknown setting {key!r}; known: {', '.join(_KEYS)}")
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise ConfigurationError(f"{file}: {key} can't be {value!r}")
    if not all(isinstance(url, str) for url in found.get("nodes", ())):
        raise ConfigurationError(f"{file}: nodes must be a list of URLs")
    return found
