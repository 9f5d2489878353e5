"""Whether the settings of a tool seem to differ from those of the services that it looks at."""

from __future__ import annotations

from collections.abc import Mapping

from .health import Trouble
from .monitor import Monitor, SeenLease

CLOCKS_APART = 2.0
"""Seconds by which the clocks of this machine and of the nodes may differ."""


OPERATOR = (
    "user operator on >PASSWORD ~{}* resetchannels -@all +evalsha +eval +time +get +set +del "
    "+exists +pexpire +pttl +mget +hmget +hset +zadd +zrange +zrangebyscore +zrem "
    "+zremrangebyscore +zrevrange +zrank +zscore +script|load +info +config|get +client|tracking "
    "+client|caching +wait +select +client|setname +scan +client|list"
)
"""The line of an ACL file for people and their tools, with the prefix left out (docs/access.md)."""


def lacking_rights(errors: Mapping[str, str], prefix: str) -> list[str]:
    """Return what helps if a node has refused to show its keys to the user of its URL."""
    refused = [cause.partition(" (")[0] for cause in errors.values() if cause.startswith("NOPERM")]
    if not refused:
        return []
    advice = (
        f"the user of the URL may not see what is held ({refused[0]}): log in as a user for "
        "operators, which needs this line in the ACL file of each node, or the same words after "
        "ACL SETUSER:"
    )
    return [advice, OPERATOR.format(prefix)]


def false_alarm(monitor: Monitor, since: float) -> Trouble | None:
    """Return what to say in place of "nothing can be locked" if clients have locked meanwhile.

    Args:
        monitor: a monitor that reports red trouble.
        since: when the trouble began, in seconds since 1970.
    """
    guarded = sum(node.health.state == "quarantined" for node in monitor.nodes)
    later = (one for one in monitor.leases.values() if _lives(one, since + CLOCKS_APART))
    lease = next(later, None) if guarded else None
    if lease is None:
        return None
    return Trouble(
        "amber",
        f"{guarded} of {len(monitor.nodes)} nodes have no vote by the settings of this page, but "
        f"clients go on locking, such as {lease.found.name!r}: the settings differ from those of "
        "the services; give the same restart_guard (--restart-guard) and max_ttl (--max-ttl)",
    )


def _lives(lease: SeenLease, since: float) -> bool:
    """Return whether a holder got its lease after `since`, or still renews it a ttl later.

    A holder whose renewals don't count has lost its lease by then.
    """
    if lease.found.owner is None:
        return False
    return (lease.exact and lease.since > since) or lease.renewed > since + lease.longest


def doubts(monitor: Monitor, prefix: str, max_ttl: float) -> list[str]:
    """Return a sentence for each setting that seems to differ from that of the services."""
    found = lacking_rights(monitor.survey.errors, prefix)
    for lease in monitor.leases.values():
        left = lease.found.nodes[0].remaining
        if left is not None and left > max_ttl * 1.01 and not lease.found.rests:
            found.append(
                f"{lease.found.name!r} has {left:.0f} s left, more than the max_ttl of {max_ttl:g} "
                "s here allows: give the max_ttl of the services (--max-ttl)"
            )
            break
    others = max((node.keys for node in monitor.nodes), default=0)
    if others and not monitor.survey.keys and not monitor.survey.errors:
        found.append(
            f"no key begins with {prefix!r}, and a node has {others:,} others: is it the prefix of "
            "the services (--prefix)?"
        )
    return found
