"""Checks of one server: can it be reached, what is it, who may use it."""

from __future__ import annotations

from ._findings import Found, cli, error, note, warning
from ._probe import Probe, Terms

OLDEST = (6, 2)
"""The first version with what wake-ups and exact expiry need."""
NEEDED = ("EVALSHA", "EVAL", "SET", "GET", "DEL", "PEXPIRE", "PTTL", "TIME")


def reachable(server: Probe, _: Terms) -> Found:
    failure = server.down
    if failure is None:
        return
    if failure.code in ("WRONGPASS", "NOAUTH", "NOPERM"):
        yield error(
            server,
            "login",
            f"it refuses our login: {failure.cause}",
            "Without a login the node gives no votes.",
            "mend user and password in the URL, or: " + cli(server, "ACL LIST"),
        )
    elif "does not speak" in failure.cause or "nobody asked" in failure.cause:
        yield error(
            server,
            "not-redis",
            "something else than Redis answers there",
            "Only a Redis or Valkey server can vote.",
            "mend host and port in the URL (rediss:// for TLS)",
        )
    elif "6.2" in failure.cause:
        yield from _too_old(server, "older than 6.0")
    else:
        yield error(
            server,
            "unreachable",
            f"it can't be reached: {failure.cause}",
            "It gives no votes; a majority of all configured nodes must.",
            cli(server, "PING") + "; then: is it running, is a firewall between, is it frozen?",
        )


def _too_old(server: Probe, version: str) -> Found:
    yield error(
        server,
        "version",
        f"its version is {version}; 6.2 is the oldest supported",
        "Wake-ups and exact expiry rely on what 6.2 brought; older ones are not tested.",
        "upgrade the server to Redis 6.2 or later, or to Valkey",
    )


def version(server: Probe, _: Terms) -> Found:
    """The version of the protocol's oldest supported server."""
    told = server.info.get("redis_version", "")
    numbers = tuple(int(part) for part in told.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST:
        yield from _too_old(server, told)


def role(server: Probe, _: Terms) -> Found:
    """A node must be a primary, and a plain server."""
    mode = server.info.get("redis_mode")
    if mode == "sentinel":
        yield error(
            server,
            "sentinel",
            "it is a Sentinel, not a server",
            "A Sentinel keeps no keys; it knows who does.",
            f"name the service: redis+sentinel://{server.address}/SERVICE",
        )
    elif server.facts.role not in (None, "master"):
        master = f"{server.info.get('master_host', '?')}:{server.info.get('master_port', '?')}"
        yield error(
            server,
            "replica",
            f"it is a replica of {master}",
            "A replica refuses writes, and learns of them too late to vote.",
            f"name {master} instead, or make it independent: " + cli(server, "REPLICAOF NO ONE"),
        )


def cluster(server: Probe, _: Terms) -> Found:
    """One server of a cluster answers only for its own slots."""
    if server.info.get("cluster_enabled") == "1" and "+cluster" not in server.url:
        yield error(
            server,
            "cluster",
            "it belongs to a cluster",
            "It answers only for the keys of its own slots and sends the others away (MOVED).",
            f"name the cluster: redis+cluster://{server.address}",
        )


def proxy(server: Probe, _: Terms) -> Found:
    """One address, one server."""
    first, second = server.facts.run_id, server.other_run_id
    if first and second and first != second:
        yield error(
            server,
            "proxy",
            "two connections reached two different servers",
            "A balancer or pooling proxy spreads the locks of one name over several servers.",
            "name the servers themselves",
        )


def rights(server: Probe, _: Terms) -> Found:
    """What the user of the URL may not do."""
    denied = {word for word, failure in server.refused.items() if failure.code == "NOPERM"}
    user = server.url.partition("://")[2].partition(":")[0] if server.login else ""
    user = user or "default"
    needed = sorted(word for word in denied if word in NEEDED)
    if needed:
        causes = {server.refused[word].cause for word in needed}
        keys = "" if not any("key" in cause for cause in causes) else " ~asynclock:*"
        words = " ".join(f"+{word.lower()}" for word in needed)
        yield error(
            server,
            "rights",
            f"the user {user} may not use {', '.join(needed)}",
            "The scripts of a lock need every one of them, on the keys under the prefix.",
            cli(server, f"ACL SETUSER {user} {words}{keys}"),
        )
    for word, why in OPTIONAL.items():
        if word in denied:
            yield warning(
                server,
                f"rights-{word.lower().replace(' ', '-')}",
                f"the user {user} may not use {word}",
                why,
                cli(server, f"ACL SETUSER {user} +{word.lower().replace(' ', '|')}"),
            )


OPTIONAL = {
    "INFO": "Restarts and roles can't be seen: the node is taken for restarted at each connection.",
    "CONFIG GET": "Whether grants survive a crash can't be seen: the restart guard always waits.",
    "SCRIPT LOAD": "Scripts are sent whole where their hash would do.",
    "SCAN": "`asynclock inspect --all` and `top` find nothing.",
    "WAIT": "Acknowledgements of replicas (acks) can't be counted.",
}


def tracking(server: Probe, _: Terms) -> Found:
    """Wake-ups by pushes."""
    for word in ("CLIENT TRACKING", "CLIENT CACHING"):
        failure = server.refused.get(word)
        if failure is not None:
            yield warning(
                server,
                "tracking",
                f"it refuses {word}: {failure.cause}",
                "Nobody is woken when a lock becomes free: waiters ask again and again instead.",
                cli(server, "ACL SETUSER default +client|tracking +client|caching")
                + "  (or connect without the proxy in between)",
            )
            return


def access(server: Probe, _: Terms) -> Found:
    """Who else may delete locks."""
    if not server.local and not server.login:
        yield warning(
            server,
            "open",
            "it lets everybody in who reaches it",
            "Whoever can write to it can delete locks.",
            cli(server, "ACL SETUSER default '>SECRET'") + "  and the password in the URL",
        )
    if not server.local and not server.url.startswith("rediss"):
        yield note(
            server,
            "plain",
            "the connection is not encrypted",
            "Passwords and owner ids can be read, and replies changed, on the way.",
            "rediss:// in the URL, tls-port in the server's configuration",
        )
