"""Changes the side of a read-write lock: a reader that also writes, a writer that goes on reading.

An upgrade takes the write lock beside the reader's own entry, which a node then overlooks. Two
readers that both upgrade would wait for each other, so an upgrade first needs a mutex of its own,
the gate, and the second reader is refused there. A downgrade enters the reader beside the writer's
own key, and then releases that key: at no moment is the name without either (docs/decisions/0023).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from .. import _clock
from .._engine.acquire import Acquire, LazyAcquire
from .._engine.engine import Engine
from .._engine.lease import Lease
from .._engine.spec import LeaseOptions, LockSpec
from ..errors import NotAcquiredError
from .obtain import obtain_behind


async def upgrade(
    engine: Engine,
    reader: Lease,
    gate: LockSpec,
    write: LockSpec,
    options: LeaseOptions,
    timeout: float | None,
) -> Lease:
    """Return a write lease beside the lease `reader`, which stays as it is."""
    asked = _clock.now()
    # No local queue: its first waiter would wait for this reader, and this call behind it.
    beside = replace(write, queue_key=None, exempt=(reader.owner,))
    deadline = None if timeout is None else asked + timeout

    def passing() -> LazyAcquire[Lease]:
        left = None if deadline is None else max(0.0, deadline - _clock.now())
        return LazyAcquire(gate.name, partial(_pass, engine, gate, options), left)

    call = partial(Acquire, engine, beside, options, timeout, since=asked)
    (writer,) = await obtain_behind(passing, [call])
    if not reader.held:
        writer._let_go()
        raise reader._loss_error()
    return writer


async def _pass(
    engine: Engine, gate: LockSpec, options: LeaseOptions, timeout: float | None
) -> Lease:
    """Return the lease on the gate. Raises NotAcquiredError at once if another reader has it."""
    try:
        return await Acquire(engine, gate, LeaseOptions(options.ttl), timeout, once=True)
    except NotAcquiredError as error:
        raise _conflict(gate.name, error) from None


def _conflict(name: str, error: NotAcquiredError) -> NotAcquiredError:
    return NotAcquiredError(
        f"another reader of {name!r} ({error.holder!r}) is being upgraded and waits for this one: "
        "release the read lease and lock to write",
        name=name,
        owner=error.owner,
        holder=error.holder,
        remaining=error.remaining,
        votes=error.votes,
        retry_after=error.retry_after,
    )


async def downgrade(engine: Engine, writer: Lease, read: LockSpec, options: LeaseOptions) -> Lease:
    """Return a read lease in place of the lease `writer`, without a gap between the two."""
    beside = replace(read, exempt=(writer.owner,))
    reader = await Acquire(engine, beside, options, writer.remaining())
    try:
        # A waiting task of this process must not take the writer's key over: a reader is in.
        writer._keep_here()
        ours = await writer._release(wait=True)
    except BaseException:
        engine.clean_up(reader._let_go)
        raise
    if not ours:
        reader._let_go()
        raise writer._loss_error()
    return reader
