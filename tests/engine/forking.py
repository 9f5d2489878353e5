"""Programs that fork, run by test_fork.py as `python -m tests.engine.forking CASE URL...`."""

import asyncio
import json
import os
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import Any

import asynclock
from asynclock.events import NodeUp

met: list[str] = []
"""The nodes to which there were connections, one after the other."""


def note(event: object) -> None:
    if isinstance(event, NodeUp):
        met.append(event.node)


SETTINGS: dict[str, Any] = {"restart_guard": False, "node_timeout": 1.0, "observers": [note]}


def tell(**what: object) -> None:
    """One line, in one write."""
    os.write(1, json.dumps(what).encode() + b"\n")


async def gone(child: int) -> int:
    """Wait for the child without holding up the loop; return its exit code.

    Without a thread: a child that closes the inherited loop takes the pipe by which threads wake
    the parent's loop out of the epoll set that both share. That is asyncio's own.
    """
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)  # noqa: ASYNC222 - it does not block
        if pid:
            return os.waitstatus_to_exitcode(status)
        await asyncio.sleep(0.01)


async def check_parent(locks: asynclock.LockManager, lease: asynclock.Lease, code: int) -> None:
    """What the child did must not have touched anything of ours."""
    held = lease.held
    await lease.extend()
    await asyncio.sleep(0.1)
    seen = await locks.inspect(lease.name)
    tell(
        child=code,
        held=held and lease.held,
        owner=seen.owner == lease.owner,
        same_links=sorted(met) == sorted(node.node for node in locks.nodes()),
        lost=locks.statistics().lost,
    )


async def misuse(locks: asynclock.LockManager, held: asynclock.Lease) -> list[str]:
    """What the child is told when it uses what it inherited."""
    said = []
    for use in (locks.lock("b").acquire, locks.lock("b").try_acquire, held.extend, locks.ready):
        try:
            await use()
        except asynclock.AsyncLockError as error:
            said.append(type(error).__name__)
    return said


async def leaves(urls: list[str]) -> None:
    """The child leaves `async with` and closes everything."""
    async with asynclock.connect(*urls, **SETTINGS) as locks:
        other = await locks.lock("other").acquire()
        child = None
        try:
            async with locks.lock("a") as lease:
                child = os.fork()
                if child:
                    code = await gone(child)
                    await check_parent(locks, lease, code)
                    return
        except asynclock.LeaseLostError:
            said = await misuse(locks, other)
            released = await other.release()
            await locks.aclose()
            tell(
                held=lease.held or other.held,
                leases=len(locks.leases()),
                released=released,
                said=said,
            )
            os._exit(0)
        os._exit(1)


async def exits(urls: list[str]) -> None:
    """The child ends by an exception that leaves every block and the event loop."""
    async with asynclock.connect(*urls, **SETTINGS) as locks, locks.lock("a") as lease:
        child = os.fork()
        if not child:
            raise SystemExit(7)
        await check_parent(locks, lease, await gone(child))


async def outlives(urls: list[str]) -> None:
    """The child lives on after its parent has closed: no connection stays open."""
    reader, writer = os.pipe()
    async with asynclock.connect(*urls, **SETTINGS) as locks:
        await (await locks.lock("a").acquire()).release()
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    tell(closed=True)
    await asyncio.to_thread(sys.stdin.readline)
    os.close(writer)
    tell(child=await gone(child))


async def preloads(locks: asynclock.LockManager) -> None:
    """One worker of a server that has made its manager before it forked."""
    async with locks.lock("a") as lease:
        owner = lease.owner
    tell(label=owner.partition(":")[2].rpartition(":")[2] == str(os.getpid()), random=owner[:32])
    await locks.aclose()


def from_a_thread(urls: list[str]) -> None:
    """The manager lives in another thread's loop than the one that forks."""
    entered, done = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    async def work() -> None:
        async with asynclock.connect(*urls, **SETTINGS) as locks, locks.lock("a") as lease:
            run = await locks.once("c").acquire()
            run.finish("the parent's")
            found.update(locks=locks, lease=lease, run=run)
            entered.set()
            while not done.is_set():
                await asyncio.sleep(0.01)
            await check_parent(locks, lease, found["code"])

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    entered.wait()
    child = os.fork()
    if not child:
        if found["lease"].held:
            os._exit(9)
        asyncio.run(use_own(urls, **found))
        os._exit(0)
    found["code"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    done.set()
    thread.join()


async def use_own(
    urls: list[str], locks: asynclock.LockManager, lease: asynclock.Lease, run: asynclock.Run
) -> None:
    """A manager of the child's own, beside the inherited one."""
    said = []
    for use in (run.release, lease.detach, partial(lease.__aexit__, None, None, None)):
        try:
            said.append(await use())
        except asynclock.LeaseLostError as error:
            said.append(error.reason)
    tell(said=said, kept=await lease.check())
    async with asynclock.connect(*urls, **SETTINGS) as ours:
        tell(free=await ours.lock("a").try_acquire() is not None)
        async with ours.lock("b"):
            await locks.aclose()


def main(case: str, urls: list[str]) -> None:
    if case == "from_a_thread":
        from_a_thread(urls)
    elif case == "preloads":
        locks = asynclock.connect(*urls, **SETTINGS)
        with suppress(RuntimeError):  # no loop runs, but this has made random numbers for owner ids
            locks.event("b").set().send(None)
        for _ in range(2):
            child = os.fork()
            if not child:
                asyncio.run(preloads(locks))
                os._exit(0)
            os.waitpid(child, 0)
    else:
        asyncio.run({"leaves": leaves, "exits": exits, "outlives": outlives}[case](urls))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
