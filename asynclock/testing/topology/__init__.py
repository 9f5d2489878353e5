"""Deployments of local servers behind one interface.

    async with SentinelGroup(replicas=2) as deployment:
        locks = asynclock.connect(*deployment.addresses, acks=1)
        await deployment.fail_over()

An `async with` block begins when the deployment is ready: replicas are in sync, and Sentinels and
cluster nodes agree. At its end no process and no file is left, even if servers were killed or
frozen.
"""

from asynclock.testing.topology.base import (
    REPLICATION,
    Quorum,
    Replicated,
    Single,
    Topology,
    follow,
    in_sync,
    runs,
    until,
)

__all__ = [
    "REPLICATION",
    "Quorum",
    "Replicated",
    "Single",
    "Topology",
    "follow",
    "in_sync",
    "runs",
    "until",
]
