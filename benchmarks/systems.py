"""The systems that are measured, and the environment of each. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

ANY = (1, 3, 5)


@dataclass(frozen=True)
class Environment:
    """Packages in a folder of their own under ``.bench/``, so that no peer decides our versions."""

    name: str
    packages: tuple[str, ...]
    kind: str = "python"
    python: str | None = None
    """The newest Python that the packages still run on, where it is not every one."""


@dataclass(frozen=True)
class System:
    """One way to lock. ``nodes`` are the node counts it is made for."""

    name: str
    label: str
    environment: str
    adapter: str
    nodes: tuple[int, ...] = ANY
    contends: bool = True
    """Whether it waits for a held name; the limits only lock free names."""
    renews: bool = False
    fences: bool = False
    """Its leases carry fences, so that its histories can be judged."""
    options: dict[str, object] = field(default_factory=dict)
    variant_of: str | None = None
    """Set for the same system with other settings: measured only where asked for by name."""


ENVIRONMENTS = {
    env.name: env
    for env in (
        Environment("asynclock", ("--editable", ".", "uvloop")),
        Environment("floor", ("hiredis", "uvloop")),
        Environment("redis-py", ("redis[hiredis]>=8", "uvloop")),
        Environment("coredis", ("coredis", "uvloop")),
        Environment("pottery", ("pottery==3.0.1", "redis[hiredis]", "uvloop")),
        Environment("aioredlock", ("aioredlock==0.7.3", "uvloop"), python="3.11"),
        Environment("redlock-ng", ("redlock-ng==2.0.4", "redis[hiredis]<6", "uvloop")),
        Environment(
            "node", ("redlock@5.0.0-beta.2", "redis-semaphore@5", "ioredis@5"), kind="node"
        ),
    )
}

SYSTEMS = {
    system.name: system
    for system in (
        System("asynclock", "asynclock", "asynclock", "asynclock_", renews=True, fences=True),
        System("floor", "floor: asyncio.Protocol + hiredis", "floor", "floor", contends=False),
        System(
            "floor-plain",
            "floor without a fence: SET NX PX",
            "floor",
            "floor",
            contends=False,
            options={"plain": True},
            variant_of="floor",
        ),
        System("gather", "redis.asyncio + gather", "redis-py", "gather", contends=False),
        System("redis-py", "redis-py Lock", "redis-py", "redis_py", nodes=(1,)),
        System("coredis", "coredis Lock", "coredis", "coredis_", nodes=(1,)),
        System("pottery", "pottery AIORedlock", "pottery", "pottery_"),
        System("aioredlock", "aioredlock", "aioredlock", "aioredlock_", renews=True),
        System("redlock-ng", "redlock-ng", "redlock-ng", "redlock_ng"),
        System("node-redlock", "node-redlock 5 beta", "node", "redlock"),
        System("redis-semaphore", "redis-semaphore", "node", "semaphore", renews=True),
        System(
            "asynclock-unguarded",
            "asynclock, guards off",
            "asynclock",
            "asynclock_",
            renews=True,
            options={"restart_guard": False, "clock_guard": False},
            variant_of="asynclock",
        ),
        System(
            "asynclock-observed",
            "asynclock with an observer",
            "asynclock",
            "asynclock_",
            renews=True,
            options={"observed": True},
            variant_of="asynclock",
        ),
    )
}

PYTHON_REDLOCKS = ("pottery", "aioredlock", "redlock-ng")
"""The Redlocks of Python; over one node they are locks like any other."""
