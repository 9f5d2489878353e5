"""Which tests run on one worker of xdist: those that share servers.

A Cluster or a group behind Sentinels takes seconds to start. Each is started once per worker, and
by default every worker gets tests of every deployment, so each worker would start all of them.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

DEPLOYMENT = re.compile(r"[\[-]((?:\d|acks\w+|sentinel|cluster|durable)-(?:tcp|unix|tls)-)(.+)\]")
"""The first two parts and the rest of a parameter set that names a face of tests/contract."""
FILE_OF_TOPOLOGIES = re.compile(r"tests/replicated/\w+\.py")


class ByServers(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of one deployment go to one worker; all others go to any worker, one by one."""

    def _split_scope(self, nodeid: str) -> str:
        return shared(nodeid)


def shared(nodeid: str) -> str:
    """Return what a test shares with others, or the test itself."""
    if found := DEPLOYMENT.search(nodeid):
        kind, rest = found.groups()
        kind = re.sub("^acks[a-z0-9]+", "group", kind)  # one group serves all numbers of replicas
        return kind + ("all-frozen" if rest.startswith("all-frozen") else rest.split("-")[0])
    if found := FILE_OF_TOPOLOGIES.match(nodeid):
        return found[0]
    return nodeid
