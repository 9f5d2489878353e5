"""Reads what a server reports about itself: the reply to INFO, and the facts for its guards."""

from __future__ import annotations

from typing import Any

from .._rules.trust import Facts


def read_facts(info: Any, fsync: Any, *, tracking: bool) -> Facts:
    """Return the facts in the replies to INFO and CONFIG GET appendfsync, if they succeeded."""
    fields = parse_info(info)
    if not fields:
        return Facts(tracking=tracking)
    always = isinstance(fsync, dict) and fsync.get(b"appendfsync") == b"always"
    uptime = fields.get("uptime_in_seconds")
    return Facts(
        run_id=fields.get("run_id"),
        uptime=float(uptime) if uptime else None,
        version=fields.get("valkey_version") or fields.get("redis_version"),
        role=fields.get("role"),
        maxmemory=int(fields.get("maxmemory") or 0),
        maxmemory_policy=fields.get("maxmemory_policy"),
        replicas=int(fields.get("connected_slaves") or 0),
        durable=always and fields.get("aof_enabled") == "1",
        tracking=tracking,
    )


def parse_info(reply: Any) -> dict[str, str]:
    """Return the fields of a reply to INFO; empty if the server refused."""
    if not isinstance(reply, bytes | str):
        return {}
    text = reply if isinstance(reply, str) else reply.decode("utf-8", "replace")
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
