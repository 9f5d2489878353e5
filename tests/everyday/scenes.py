"""What users do all day with a lock. Each scene returns what they would notice.

A scene needs real servers and several processes. It runs any system that has an adapter and can do
what the scene asks for. Times are in seconds.
"""

import asyncio
import contextlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from asynclock.testing import FaultProxy, LocalServer
from benchmarks.remote import Remote, WorkerError
from benchmarks.votes import jittery, race
from tests.everyday.stage import READY, Looped, Stage, looping, woken

NAME = "everyday"
LONG_ENOUGH = 0.3
"""Seconds after which a peer that asked for a held name surely waits."""


async def workers(there: Stage, count: int, seconds: float, body: float = 0.020) -> Looped:
    """Each of `count` processes works in a loop on one name."""
    return await looping(there, await there.processes(count), seconds=seconds, body=body)


async def managers(there: Stage, count: int, seconds: float) -> Looped:
    """One process has `count` managers, each with a worker that loops on one name."""
    processes = await there.processes(1, managers=count)
    return await looping(there, processes, seconds=seconds, body=0.002)


async def readers_and_writers(there: Stage, seconds: float) -> Looped:
    """Two processes write in a loop and six read; the first two counts are the writers'."""
    writing = await there.processes(2, kind="write")
    reading = await there.processes(6, kind="read")
    seen = await looping(there, [*writing, *reading], seconds=seconds, body=0.010)
    return replace(seen, readers=len(reading))


async def web(
    there: Stage, *, every: float, seconds: float, timeout: float, body: float
) -> dict[str, float]:
    """Four server processes get a request for one hot name each `every` seconds."""
    processes = await there.processes(4)
    await asyncio.gather(*(p.ask("warm", name=f"warm:{n}") for n, p in enumerate(processes)))
    start = time.monotonic() + READY
    asks = (
        p.ask(
            "serve",
            patience=seconds + timeout + 60,
            name=NAME,
            # The servers do not get their requests at the same moments.
            start=start + number * every / 4,
            seconds=seconds,
            every=every,
            timeout=timeout,
            body=body,
        )
        for number, p in enumerate(processes)
    )
    replies = await asyncio.gather(*asks)
    answers: Counter[str] = sum((Counter(reply["answers"]) for reply in replies), Counter())
    served, busy = answers.pop("served", 0), answers.pop("busy", 0)
    causes = await woken(processes)
    return {
        "requests": 4 * round(seconds / every),
        "served": served,
        "busy": busy,
        "failed": answers.total(),
        "slowest": max(reply["slowest"] for reply in replies),
        "in_use": sum(r["inside"] for r in replies) / max(r["lasted"] for r in replies),
        "pushed": causes.pushed,
        "by_itself": causes.by_itself,
    }


async def cron(there: Stage, hosts: int, ticks: int) -> dict[str, float]:
    """All hosts try to get the name of a job at the same moment, over links with jitter."""
    async with jittery(there.servers, hosts) as links:
        starting = (there.processes(1, [link.url for link in own]) for own in links)
        processes = [one for (one,) in await asyncio.gather(*starting)]
        return await race(processes, links, NAME, ticks)


async def jobs(there: Stage, customers: int, each: int) -> dict[str, float]:
    """Four processes work through a queue of jobs, four at once, with a lock per customer."""
    todo = [f"customer:{number % customers}" for number in range(customers * each)]
    processes = await there.processes(4)
    start = time.monotonic() + READY
    asks = (
        p.ask("jobs", patience=120, customers=todo[n::4], start=start, tasks=4, body=0.005)
        for n, p in enumerate(processes)
    )
    done = [job for reply in await asyncio.gather(*asks) for job in reply["done"]]
    causes = await woken(processes)
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for customer, began, ended in done:
        spans[customer].append((began, ended))
    pairs = (pair for one in spans.values() for pair in itertools.pairwise(sorted(one)))
    return {
        "jobs": len(todo),
        "done": len(done),
        "overlaps": sum(later[0] < earlier[1] for earlier, later in pairs),
        "at_once": _most_at_once([span for one in spans.values() for span in one]),
        "seconds": max(ended for _, _, ended in done) - start,
        "pushed": causes.pushed,
        "by_itself": causes.by_itself,
    }


def _most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    steps = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    return max(itertools.accumulate(step for _, step in steps))


async def _queued(there: Stage, tasks: int) -> None:
    """Wait until this many tasks of other processes wait; of peers no server knows who waits."""
    if there.system.environment == "asynclock":
        await _most_show(there, tasks, _waiters)
    else:
        await asyncio.sleep(LONG_ENOUGH)


async def _most_show(
    there: Stage, least: int, count: Callable[[LocalServer], Awaitable[int]]
) -> None:
    """Look until `count` is at least `least` on most servers."""
    while 2 * sum([await count(server) >= least for server in there.servers]) <= len(there.servers):
        await asyncio.sleep(0.005)


async def _waiters(server: LocalServer) -> int:
    places: Any = await server.command("KEYS", f"*{NAME}*")
    kinds = [await server.command("TYPE", place) for place in places]
    queues = (place for place, kind in zip(places, kinds, strict=True) if kind == "zset")
    return sum([await server.command("ZCARD", queue) for queue in queues])


async def _is_taken(server: LocalServer) -> int:
    places: Any = await server.command("KEYS", f"*{NAME}*")
    return len(places)


async def deploy(there: Stage, times: int = 1) -> dict[str, float]:
    """A process gets SIGTERM while it holds the lock; another one waits for the lock.

    The end of the process that got SIGTERM shows how fast the machine is: "shares" of its time
    until the end have passed when the next process begins, at the best of `times`.
    """
    waiter, *holders = await there.processes(1 + times)
    status, nexts, shares = 0, [], []
    for holder in holders:
        await holder.ask("work_until_told", name=NAME)
        waiting = asyncio.create_task(waiter.ask("take", patience=there.ttl + 60, name=NAME))
        await _queued(there, 1)
        told = time.monotonic()
        status = max(status, abs(await holder.terminate()))
        ended = time.monotonic()
        taken = await waiting
        nexts.append(taken["at"] - told)
        shares.append((taken["at"] - told) / (ended - told))
        await waiter.ask("drop")
    causes = await woken([waiter])
    return {
        "status": status,
        "until_next": max(nexts),
        "shares": min(shares),
        "pushed": causes.pushed,
    }


async def crash(there: Stage) -> dict[str, float]:
    """A process is killed (SIGKILL) while it holds the lock; another one waits for the lock."""
    holder, waiter = await there.processes(2)
    taken = await holder.ask("take", name=NAME)
    waiting = asyncio.create_task(waiter.ask("take", patience=there.ttl + 60, name=NAME))
    await _queued(there, 1)
    killed = time.monotonic()
    await holder.end()
    following = await waiting
    return {
        "until_next": following["at"] - killed,
        "since_taken": following["at"] - taken["at"],
        "fence_rose": float(following.get("fence", 0) > taken.get("fence", 0)),
    }


async def restarts(
    there: Stage, pause: float, *, seconds: float = 0.0, body: float = 0.02
) -> Looped:
    """Each node is restarted, empty, one after another, with a pause; three processes work on."""
    processes = await there.processes(3)
    lasts = seconds or 1.0 + len(there.servers) * (pause + 0.5)
    restarting = _restart_all(there, pause)
    return await looping(there, processes, seconds=lasts, body=body, meanwhile=restarting)


async def _restart_all(there: Stage, pause: float) -> None:
    await asyncio.sleep(READY + 0.5)
    for server in there.servers:
        await server.stop()
        await server.start()
        await asyncio.sleep(pause)


async def held_while_nodes_restart(there: Stage, pause: float) -> tuple[Looped, dict[str, float]]:
    """The same, and a fourth process holds a name of its own all the time, which a fifth wants."""
    holder, rival = await there.processes(2)
    await holder.ask("take", name="long")
    waiting = asyncio.create_task(rival.ask("take", patience=120, name="long"))
    seen = await restarts(there, pause)
    kept = (await holder.ask("keeps"))["held"]
    dropped = (await holder.ask("drop"))["at"]
    taken = (await waiting)["at"]
    return seen, {"kept": float(kept), "rival_waited": float(taken > dropped)}


async def flapping(there: Stage, seconds: float) -> Looped:
    """One node comes and goes while three processes work, who go on for two seconds after that."""
    async with FaultProxy(there.servers[-1]) as link:
        urls = [*(server.url for server in there.servers[:-1]), link.url]
        processes = await there.processes(3, urls)

        async def flap() -> None:
            until = time.monotonic() + READY + seconds
            while time.monotonic() < until:
                link.partition()
                await asyncio.sleep(0.1)
                link.heal()
                await asyncio.sleep(0.15)

        lasts = seconds + 2.0
        return await looping(there, processes, seconds=lasts, body=0.01, meanwhile=flap())


async def blocked_loop(there: Stage, seconds: float) -> dict[str, float]:
    """The holder blocks its event loop inside the lock, while another process waits."""
    holder, waiter = await there.processes(2)
    await holder.ask("warm", name="warm")
    blocking = asyncio.create_task(holder.ask("block", patience=60, name=NAME, seconds=seconds))
    await _most_show(there, 1, _is_taken)
    taken = await waiter.ask("take", patience=60, name=NAME)
    held = await blocking
    return {
        "next_before_the_end": float(taken["at"] < held["ended"]),
        "until_next": taken["at"] - held["began"],
        "went_on": float(held["went_on"]),
        "told": float(held["outcome"] != "done"),
    }


async def early_application(there: Stage, late: float) -> dict[str, float]:
    """An application starts `late` seconds before its nodes, and wants a lock all the time."""
    (process,) = await there.processes(1)
    for server in there.servers:
        await server.stop()
    (early,) = await there.processes(1)
    await process.end()
    asking = asyncio.create_task(_until_it_has(early))
    await asyncio.sleep(late)
    began = time.monotonic()
    await asyncio.gather(*(server.start() for server in there.servers))
    taken, failures = await asking
    return {"until_first": taken["at"] - began, "errors_before": failures}


async def _until_it_has(process: Remote) -> tuple[dict[str, Any], int]:
    """Ask for the lock again and again, as a program does that its supervisor starts again."""
    for failures in itertools.count():
        try:
            return await process.ask("take", patience=90, name=NAME), failures
        except WorkerError:
            await asyncio.sleep(0.1)
    raise AssertionError


async def leader_dies(there: Stage) -> dict[str, float]:
    """Three candidates want to lead; the leader is killed, then the next one too."""
    candidates = await there.processes(3, kind="election")
    campaigns = {asyncio.create_task(p.ask("take", patience=120, name=NAME)): p for p in candidates}
    terms, longest, died = [], 0.0, time.monotonic()
    for _ in candidates:
        (elected, *_), _ = await asyncio.wait(campaigns, return_when=asyncio.FIRST_COMPLETED)
        term = elected.result()
        terms.append(term)
        longest = max(longest, term["at"] - died)
        leader = campaigns.pop(elected)
        await _queued(there, len(campaigns))
        died = time.monotonic()
        await leader.end()
    rising = all(a["fence"] < b["fence"] for a, b in itertools.pairwise(terms))
    return {"leaders": len(terms), "longest_without": longest, "terms_rise": float(rising)}


async def cold_start(there: Stage, delay: float) -> dict[str, float]:
    """A new process takes its first lock over a link of which each direction takes `delay`."""
    async with contextlib.AsyncExitStack() as stack:
        links = [await stack.enter_async_context(FaultProxy(server)) for server in there.servers]
        for link in links:
            link.delay(delay, delay)
        urls = [link.url for link in links]
        (process,) = await there.processes(1, urls, beside=links[0].port)
        first = await process.ask("take", name=NAME)
        await process.ask("drop")
        again = await process.ask("take", name=NAME)
        return {
            "connect": there.opened[0]["connect"],
            "first_lock": first["took"],
            "second_lock": again["took"],
            # Without the plain one, which goes over the first link.
            "connections": max(link.accepted - (link is links[0]) for link in links),
            "connect_exchanges": there.opened[0]["exchanges"],
            "first_exchanges": first["exchanges"],
            "second_exchanges": again["exchanges"],
        }
