"""Removes credentials from URLs, from errors about URLs, and from a server's reply to a login."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

_HOST_AND_PORT = r"(?:[A-Za-z0-9_.%-]+|\[[0-9A-Fa-f:.]+\])?(?::\d{0,5})?"
_SHAPE = re.compile(
    r"(?P<scheme>[a-z][a-z+]*://)"
    r"(?:(?P<user>[^:@/?#\s]*)(?P<password>:[^@/?#\s]*)?@)?"
    rf"(?P<hosts>{_HOST_AND_PORT}(?:,\s*{_HOST_AND_PORT})*)"
    r"(?P<path>/[^@?#=\s]*)?"
    r"(?:\?(?P<query>[^@#\s]*))?"
)
_BARE = re.compile(r"[A-Za-z0-9_.-]+(?::\d{1,5})?/?\d*")
_SCHEME = re.compile(r"[a-z][a-z+]*://")
_QUOTED = re.compile(r"(argument |value for )?(['\"`]).*\2")
SHORTEST = 4
"""Minimum length of a password's beginning that is removed: servers cut long arguments off."""


def redacted(url: str) -> str:
    """Return `url` quoted for messages, without passwords and anything that may be part of one."""
    url = url.strip()
    match = _SHAPE.fullmatch(url)
    if match is None:
        scheme = _SCHEME.match(url)
        return repr(url if _BARE.fullmatch(url) else f"{scheme[0] if scheme else ''}***")
    login = ""
    if match["user"] is not None:
        # A user name without a password may be a token.
        login = "***@" if match["password"] is None else f"{match['user']}:***@"
    query = "" if match["query"] is None else f"?{_without_values(match['query'])}"
    return repr(f"{match['scheme']}{login}{match['hosts']}{match['path'] or ''}{query}")


def as_options(urls: Iterable[str], given: Mapping[str, object]) -> str:
    """Return the options of a command about the nodes at `urls`, without passwords.

    `given`: the value of each further option; None for those that were not given.
    """
    words = [word for url in urls for word in ("--node", redacted(url).strip("'"))]
    for option, value in given.items():
        words += (
            [] if value is None else [option, f"{value:g}" if type(value) is float else str(value)]
        )
    return shlex.join(words)


def _without_values(query: str) -> str:
    pairs = (pair.partition("=") for pair in query.split("&"))
    return "&".join(f"{name}=***" if mark else "***" for name, mark, _ in pairs)


def harmless(error: Exception) -> str:
    """Return the text of an error about a URL, without the values that it quotes."""
    return _QUOTED.sub(lambda found: found[0] if found[1] else "…", str(error))


def without(text: str, secrets: Sequence[str]) -> str:
    """Return a server's reply without `secrets`, whole or cut off, and without our arguments."""
    text = text.partition(", with args beginning with")[0]
    for secret in secrets:
        while (length := _longest_prefix(text, secret)) >= min(SHORTEST, len(secret)) > 0:
            text = text.replace(secret[:length], "***")
    return text


def _longest_prefix(text: str, secret: str) -> int:
    """Return the length of the longest beginning of `secret` that occurs in `text`."""
    lengths = (n for n in range(len(secret), 0, -1) if secret[:n] in text)
    return 0 if secret in "***" else next(lengths, 0)  # noqa: S105 - what stands in its place
