"""What can be wrong: the texts are in findings.toml, by code."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from importlib.resources import files
from typing import Any

from .probe import Probe

TEXTS: dict[str, dict[str, str]] = tomllib.loads(
    (files(__package__) / "findings.toml").read_text("utf-8")
)


class Severity(IntEnum):
    """How bad a finding is; the worst one is the program's exit status."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know or to fix."""

    code: str
    severity: Severity
    node: str
    """Address of the node; "" if the finding is about all of them."""
    what: str
    why: str
    fix: str


Found = Iterator[Finding]


class Call:
    """Formats `{call:CONFIG SET …}` in a text as a command line."""

    def __init__(self, make: Callable[[str], str]) -> None:
        self._make = make

    def __format__(self, words: str) -> str:
        return self._make(words)


def finding(
    text: str,
    *,
    node: str = "",
    code: str | None = None,
    severity: Severity | None = None,
    **facts: Any,
) -> Finding:
    """Return the finding with this text of findings.toml; `code` and `severity` as there."""
    row = TEXTS[text]
    what, why, fix = (row[key].format_map(facts) for key in ("what", "why", "fix"))
    level = Severity[row.get("severity", "error").upper()] if severity is None else severity
    return Finding(code or text, level, node, what, why, fix)


def about(server: Probe, text: str, **facts: Any) -> Finding:
    """Return a finding about one server."""
    return finding(
        text,
        node=server.address,
        call=Call(partial(call, server)),
        set=Call(partial(set_for_good, server)),
        **facts,
    )


def call(server: Probe, words: str) -> str:
    """Return a redis-cli call to this server; the password is left to REDISCLI_AUTH."""
    endpoint = server.endpoint
    if endpoint.path:
        return f"redis-cli -s {endpoint.path} {words}"
    tls = " --tls" if server.url.startswith("rediss") else ""
    return f"redis-cli -h {endpoint.host} -p {endpoint.port}{tls} {words}"


def set_for_good(server: Probe, words: str) -> str:
    """Return a redis-cli call that changes a setting and keeps the change over a restart."""
    now = call(server, words)
    if words.startswith("ACL ") and server.config.get("aclfile"):
        return f"{now}; {call(server, 'ACL SAVE')}"
    if server.info.get("config_file") or not server.info:
        return f"{now}; {call(server, 'CONFIG REWRITE')}"
    return f"{now}  (and in what it is started with: it has no file for CONFIG REWRITE)"
