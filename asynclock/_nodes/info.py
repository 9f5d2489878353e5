"""Reads what a server reports about itself: the reply to INFO, and the facts for its guards."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .._rules.trust import Facts
from .replies import reader

HISTORY = ("master_replid", "master_replid2")
"""The fields with the ids of the history of a server's data; zeros for none."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def read_facts(info: Any, fsync: Any, *, tracking: bool) -> Facts:
    """Return the facts in the replies to INFO and CONFIG GET appendfsync, if they succeeded."""
    fields = parse_info(info)
    if not fields:
        return Facts(tracking=tracking)
    always = fsync in ({b"appendfsync": b"always"}, [b"appendfsync", b"always"])
    return Facts(
        run_id=fields.get("run_id") or None,
        uptime=number(fields, "uptime_in_seconds"),
        lineage=frozenset(found for key in HISTORY if (found := fields.get(key, "").strip("0"))),
        version=fields.get("valkey_version") or fields.get("redis_version"),
        role=fields.get("role"),
        maxmemory=number(fields, "maxmemory") or 0,
        maxmemory_policy=fields.get("maxmemory_policy"),
        replicas=number(fields, "connected_slaves") or 0,
        durable=always and fields.get("aof_enabled") == "1",
        tracking=tracking,
    )


def parse_info(reply: Any) -> dict[str, str]:
    """Return the fields of a reply to INFO; empty if the server refused."""
    if not isinstance(reply, bytes | str):
        return {}
    text = reply if isinstance(reply, str) else reply.decode("utf-8", "replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def is_sentinel(fields: Mapping[str, str]) -> bool:
    """Return whether these fields of INFO are a Sentinel's.

    Redis calls the field `redis_mode`, Valkey 9 calls it `server_mode`.
    """
    return any(key.endswith("_mode") and fields[key] == "sentinel" for key in fields)


def number(fields: Mapping[str, str], key: str) -> int | None:
    """Return the number in field `key`; None if the field is missing or isn't a number."""
    text = fields.get(key, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def major_minor(version: str | None) -> tuple[int, ...]:
    """Return the first two numbers of a version; fewer if these parts aren't numbers."""
    return tuple(int(part) for part in (version or "").split(".")[:2] if _NUMBER.fullmatch(part))


@reader
def read_time(reply: Any) -> float:
    """Return the clock in a reply to TIME, in seconds since 1970."""
    seconds, micros = reply
    return int(seconds) + int(micros) / 1_000_000
