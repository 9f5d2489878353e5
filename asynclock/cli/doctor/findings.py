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

ELSEWHERE = {
    ("CONFIG", "SET"): "set {name} to {value} where the server is configured: in the parameter "
    "group or the console of a managed service, or in the file of a server of your own",
    ("ACL", "SETUSER"): "give the user {name} the rights {value} where users are kept: in the "
    "user group or the console of a managed service, or in the ACL file of a server of your own",
}
"""First words of a command -> what to do instead on a server that shows no settings."""


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
    configurable: bool = True,
    **facts: Any,
) -> Finding:
    """Return the finding with this text of findings.toml; `code` and `severity` as there."""
    row = TEXTS[text]
    fixed = "fix" if configurable or "managed" not in row else "managed"
    what, why, fix = (row[key].format_map(facts) for key in ("what", "why", fixed))
    level = Severity[row.get("severity", "error").upper()] if severity is None else severity
    return Finding(code or text, level, node, what, why, fix)


def about(server: Probe, text: str, **facts: Any) -> Finding:
    """Return a finding about one server."""
    return finding(
        text,
        node=server.address,
        configurable=server.configurable,
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
    """Return what changes a setting for good: a redis-cli call, or words if none can do it."""
    if not server.configurable:
        kind, verb, name, value = words.split(maxsplit=3)
        return ELSEWHERE[kind, verb].format(name=name, value=value)
    now = call(server, words)
    if words.startswith("ACL ") and server.config.get("aclfile"):
        return f"{now}; {call(server, 'ACL SAVE')}"
    if server.info.get("config_file") or not server.info:
        return f"{now}; {call(server, 'CONFIG REWRITE')}"
    return f"{now}  (and in what it is started with: it has no file for CONFIG REWRITE)"
