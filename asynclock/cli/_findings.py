"""What can be wrong: each finding says why it matters and which command mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from ._probe import Probe

FULL = 0.9
"""Memory or connections in use, as a part of what there is: from here on it is worth a word."""


class Severity(IntEnum):
    """How bad it is; the worst one is the program's exit status."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know or to mend."""

    code: str
    severity: Severity
    node: str
    """The address; "" where it is about all of them."""
    what: str
    why: str
    mend: str


Found = Iterator[Finding]


def cli(server: Probe, words: str) -> str:
    """A redis-cli call for this server; the password is left to REDISCLI_AUTH."""
    endpoint = server.endpoint
    if endpoint.path:
        return f"redis-cli -s {endpoint.path} {words}"
    tls = " --tls" if server.url.startswith("rediss") else ""
    return f"redis-cli -h {endpoint.host} -p {endpoint.port}{tls} {words}"


def error(server: Probe, code: str, what: str, why: str, mend: str) -> Finding:
    return Finding(code, Severity.ERROR, server.address, what, why, mend)


def warning(server: Probe, code: str, what: str, why: str, mend: str) -> Finding:
    return Finding(code, Severity.WARNING, server.address, what, why, mend)


def note(server: Probe, code: str, what: str, why: str, mend: str) -> Finding:
    return Finding(code, Severity.NOTE, server.address, what, why, mend)
