"""The systems that are measured, and the environment of each. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

ANY = (1, 3, 5)
FLOOR = "floor-plain"
"""The limit in Python, which gives no fence."""
FLOOR_QUEUED = f"{FLOOR}-queued"
"""The floor for many tasks that want one name. Each waits until the one before it is released."""
FLOOR_SCRIPTS = "floor-scripts"
"""The floor with the commands of asynclock's mutex: no client with our protocol can be faster."""
FLOOR_WAITING = f"{FLOOR}-waiting"
"""The floor for several processes that want one name: a release publishes, and a waiter asks."""


@dataclass(frozen=True)
class Environment:
    """Packages in a folder of their own under ``.bench/``, so that no peer decides our versions.

    Every package of a peer is pinned, also those that it needs itself: a run of next year measures
    the same peers. The packages of Node are pinned by ``node/package-lock.json``.
    """

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
    kinds: tuple[str, ...] = ("lock",)
    """The primitives that it has, of those that scenarios use."""
    tries: bool = False
    """Whether its adapter can try once."""
    renews: bool = False
    fences: bool = False
    """Its leases carry fences, so that its histories can be judged."""
    options: dict[str, object] = field(default_factory=dict)
    variant_of: str | None = None
    """Set for the same system with other settings: measured only where asked for by name."""


FAST = ("hiredis==3.5.0", "uvloop==0.23.0")
COREDIS = (
    *("coredis==6.9.0", "anyio==4.16.0", "beartype==0.23.1", "Deprecated==1.3.1"),
    *("exceptiongroup==1.3.1", "idna==3.20", "packaging==26.3", "typing_extensions==4.16.0"),
    "wrapt==2.5.2",
)
AIOREDLOCK = ("aioredlock==0.7.3", "aioredis==1.3.1", "async-timeout==5.0.1", "attrs==26.1.0")
REDLOCK_NG = (
    *("redlock-ng==2.0.4", "redis==5.3.1", "PyJWT==2.15.1", "annotated-types==0.8.0"),
    *("pydantic==2.14.3", "pydantic_core==2.50.4", "typing-inspection==0.4.5"),
    *("typing_extensions==4.16.0", "urllib3==1.26.20"),
)
POTTERY = ("pottery==3.0.1", "redis==8.1.0", "mmh3==5.3.1", "typing_extensions==4.16.0")

ENVIRONMENTS = {
    env.name: env
    for env in (
        Environment("asynclock", ("--editable", ".", *FAST)),
        Environment("floor", FAST),
        Environment("redis-py", ("redis==8.1.0", *FAST)),
        Environment("coredis", (*COREDIS, *FAST)),
        Environment("pottery", (*POTTERY, *FAST)),
        Environment("aioredlock", (*AIOREDLOCK, *FAST), python="3.11"),
        Environment("redlock-ng", (*REDLOCK_NG, *FAST)),
        Environment(
            "node", ("redlock@5.0.0-beta.2", "redis-semaphore@5.8.0", "ioredis@5.11.1"), kind="node"
        ),
    )
}

_FLOOR = System(
    FLOOR,
    "plain floor: SET NX PX, asyncio.Protocol",
    "floor",
    "floor",
    contends=False,
    kinds=("lock", "thread"),
)
_ASYNCLOCK = System(
    "asynclock",
    "asynclock",
    "asynclock",
    "asynclock_",
    kinds=("lock", "fair_lock", "write", "read", "semaphore", "election", "thread"),
    tries=True,
    renews=True,
    fences=True,
)
_PEERS = (
    System(
        "redis-py",
        "redis-py Lock",
        "redis-py",
        "redis_py",
        nodes=(1,),
        kinds=("lock", "thread"),
        tries=True,
    ),
    System("coredis", "coredis Lock", "coredis", "coredis_", nodes=(1,)),
    System(
        "pottery",
        "pottery AIORedlock",
        "pottery",
        "pottery_",
        kinds=("lock", "thread"),
        tries=True,
    ),
    System("aioredlock", "aioredlock", "aioredlock", "aioredlock_", renews=True),
    System("redlock-ng", "redlock-ng", "redlock-ng", "redlock_ng"),
    System("node-redlock", "node-redlock 5 beta", "node", "redlock", tries=True),
    System(
        "redis-semaphore",
        "redis-semaphore",
        "node",
        "semaphore",
        kinds=("lock", "semaphore"),
        renews=True,
    ),
)


def _ours(name: str, label: str, **options: object) -> System:
    """asynclock with other settings."""
    return replace(
        _ASYNCLOCK, name=f"asynclock-{name}", label=label, options=options, variant_of="asynclock"
    )


def _queued(peer: System) -> System:
    """A peer whose tasks queue inside the process, so that one of them at a time asks Redis."""
    return replace(
        peer,
        name=f"{peer.name}-queued",
        label=f"{peer.label} behind a local lock",
        contends=True,
        options={"queued": True},
        variant_of=peer.name,
    )


SYSTEMS = {
    system.name: system
    for system in (
        _ASYNCLOCK,
        _FLOOR,
        System("gather", "redis.asyncio + gather", "redis-py", "gather", contends=False),
        *_PEERS,
        _ours("strict", "asynclock, strict order", handoff="strict"),
        _ours("apart", "asynclock without hand-over", handoff=False),
        _ours("unguarded", "asynclock, guards off", restart_guard=False, clock_guard=False),
        _ours("observed", "asynclock with an observer", observed=True),
        *map(_queued, (_FLOOR, *_PEERS)),
        replace(
            _FLOOR,
            name=FLOOR_SCRIPTS,
            label="plain floor with asynclock's commands",
            environment="asynclock",
            options={"scripts": True},
            variant_of=FLOOR,
        ),
        replace(
            _FLOOR,
            name=FLOOR_WAITING,
            label="plain floor that waits for a message",
            contends=True,
            options={"waits": True},
            variant_of=FLOOR,
        ),
    )
}

PYTHON_REDLOCKS = ("pottery", "aioredlock", "redlock-ng")
"""The Redlocks of Python; over one node they are locks like any other."""

QUEUED = tuple(f"{peer.name}-queued" for peer in _PEERS)
"""Each peer behind one lock of the process: what a user builds who knows that polling is slow."""

ON_ONE_NAME = (
    *(name for name, system in SYSTEMS.items() if system.contends and not system.variant_of),
    *("asynclock-strict", "asynclock-apart", FLOOR_QUEUED),
    *QUEUED,
)
"""All ways to share one name between the tasks of a process."""
