"""What users do all day, with bounds on what they would notice.

Beside other tests the machine is busy, so there the bounds count: what woke the waiters, how many
exchanges of a plain connection a start takes, which share of the time the name was in use. Bounds
on seconds are wide there, and tight where these tests run one by one (`nox -s nightly`).
Where a peer can do the same, it runs too, at night; a peer is held only to what it promises itself.
`nox -s everyday` prints the figures of all systems side by side.
"""

import os
from collections.abc import Mapping

import pytest

from tests.everyday import scenes
from tests.everyday.stage import Looped, stage

pytestmark = pytest.mark.timeout(180)  # many processes start on a busy machine

BUSY = "PYTEST_XDIST_WORKER" in os.environ
"""Whether other tests run beside."""
SLOW = 15.0 if BUSY else 0.5
"""Seconds that the machine may add to anything."""
USED = 0.15 if BUSY else 0.7
"""The least share of the time in which a name that many want is in use. On a very busy machine, a
hand-over takes as long as two bodies; without pushes, the share is 0.05."""

# How evenly processes share a name, and how often they ask, is for a quiet machine: a busy one runs
# some of them and not others. tests/engine/test_queue.py shows the order in virtual time.
quiet = pytest.mark.nightly

OURS = [pytest.param("asynclock", 1, id="one"), pytest.param("asynclock", 3, id="three")]
ALL = [*OURS, pytest.param("redis-py", 1, id="redis-py", marks=pytest.mark.nightly)]
ours = pytest.mark.parametrize(("who", "nodes"), OURS)
everybody = pytest.mark.parametrize(("who", "nodes"), ALL)
three = pytest.mark.parametrize(("who", "nodes"), OURS[1:])


class UnfairError(Exception):
    """Somebody starved, or the waiters cost too much: nothing unsafe, but users notice it."""


def fair(true: bool, seen: object) -> None:
    if not true:
        raise UnfairError(str(seen))


def told(seen: Looped | Mapping[str, float]) -> None:
    """Servers told waiters of releases; waiters that had to ask again by themselves are few."""
    figures = seen.figures() if isinstance(seen, Looped) else seen
    fair(figures["pushed"] > 0, figures)
    fair(figures["by_itself"] <= figures["pushed"] / 4, figures)


def used(seen: Looped | Mapping[str, float]) -> None:
    """The name was not left unused while somebody wanted it."""
    figures = seen.figures() if isinstance(seen, Looped) else seen
    fair(figures["in_use"] >= USED, figures)


def safe(seen: Looped) -> None:
    """Nobody met another one inside, nothing failed, and work was done."""
    assert seen.violations == 0
    assert seen.errors == 0
    assert sum(seen.counts) > 0


# ---------------------------------------------------------------- workers
@ours
@pytest.mark.parametrize("count", [2, pytest.param(16, marks=quiet)])
async def test_workers_take_turns(who: str, nodes: int, count: int) -> None:
    async with stage(who, nodes) as there:
        seen = await scenes.workers(there, count, seconds=3)
    safe(seen)
    used(seen)
    figures = seen.figures()
    if count == 2:
        told(seen)
        fair(seen.overtook <= (20 if BUSY else 4), figures)
        fair(min(seen.counts) >= (0.3 if BUSY else 0.7) * max(seen.counts), figures)
    else:
        fair(seen.overtook <= 3 * count, figures)
        fair(figures["scripts"] <= 6, figures)


@quiet
@ours
async def test_fifty_managers_in_one_process_take_turns(who: str, nodes: int) -> None:
    async with stage(who, nodes) as there:
        seen = await scenes.managers(there, 50, seconds=4)
    safe(seen)
    # Five bodies of 2 ms begin within a turn of 10 ms, and the run may end within a round.
    fair(max(seen.counts) <= 6 * (min(seen.counts) + 1), seen.counts)


@ours
async def test_readers_and_writers_both_get_their_turns(who: str, nodes: int) -> None:
    """In strict phases each reader goes after each writer: twice as often as one of two writers."""
    async with stage(who, nodes) as there:
        seen = await scenes.readers_and_writers(there, seconds=2 if BUSY else 3)
    safe(seen)
    told(seen)
    if not BUSY:
        writers, readers = seen.counts[:2], seen.counts[2:]
        fair(min(readers) >= max(writers), seen.counts)
        fair(min(writers) >= 0.5 * max(writers), seen.counts)


# ---------------------------------------------------------------- web
@everybody
async def test_web_handlers_on_one_hot_name(who: str, nodes: int) -> None:
    async with stage(who, nodes) as there:
        seen = await scenes.web(there, every=0.08, seconds=2.5, timeout=60, body=0.005)
    assert seen["failed"] == 0
    assert seen["served"] == seen["requests"]


@everybody
async def test_more_requests_than_the_name_can_serve(who: str, nodes: int) -> None:
    """Each request is answered at its timeout at the latest, and the name is not left unused."""
    async with stage(who, nodes) as there:
        seen = await scenes.web(there, every=0.04, seconds=2.5, timeout=1, body=0.02)
    assert seen["failed"] == 0
    assert seen["served"] + seen["busy"] == seen["requests"]
    assert seen["busy"] > 0
    assert seen["slowest"] < 1 + SLOW
    if who == "asynclock":
        told(seen)
        used(seen)


# ---------------------------------------------------------------- cron and jobs
@pytest.mark.parametrize(
    ("who", "nodes"), [*ALL, pytest.param("asynclock", 5, marks=pytest.mark.nightly)]
)
async def test_cron_never_runs_twice(who: str, nodes: int) -> None:
    async with stage(who, nodes) as there:
        seen = await scenes.cron(there, hosts=10, ticks=10)
    assert seen["violations"] == 0
    if nodes == 1:
        assert seen["one_percent"] == 100
    elif nodes == 3 and not BUSY:  # tickets settle split votes
        fair(seen["one_percent"] == 100, seen)


@everybody
async def test_a_queue_of_jobs_with_a_lock_per_customer(who: str, nodes: int) -> None:
    async with stage(who, nodes) as there:
        # With 19 customers, each of the four processes gets jobs of all of them.
        seen = await scenes.jobs(there, customers=19, each=8)
    assert seen["done"] == seen["jobs"]
    assert seen["overlaps"] == 0
    assert seen["at_once"] > 4  # customers do not wait for each other
    if who == "asynclock":
        told(seen)


# ---------------------------------------------------------------- processes and nodes come and go
@everybody
async def test_a_deploy_hands_the_lock_on_at_once(who: str, nodes: int) -> None:
    async with stage(who, nodes, ttl=30.0, max_ttl=30.0, restart_guard=False) as there:
        seen = await scenes.deploy(there, times=3)
    assert seen["status"] == 0
    assert seen["until_next"] < (SLOW if BUSY else 0.2)  # far below the ttl
    if who == "asynclock":  # the waiter is told; usually it begins before the other process ends
        assert seen["pushed"] > 0
        assert seen["shares"] < 5


@everybody
async def test_a_crash_blocks_the_name_for_the_ttl(who: str, nodes: int) -> None:
    async with stage(who, nodes, ttl=2.0) as there:
        seen = await scenes.crash(there)
    assert seen["since_taken"] > 1.0
    assert seen["until_next"] < 2 + SLOW
    if who == "asynclock":
        assert seen["fence_rose"]


@three
async def test_a_rolling_restart_of_the_nodes(who: str, nodes: int) -> None:
    """With a pause of the longest ttl and three seconds after each node, nobody notices it."""
    async with stage(who, nodes, ttl=1.0, max_ttl=1.0) as there:
        seen, held = await scenes.held_while_nodes_restart(there, pause=5.0)
    safe(seen)
    used(seen)
    assert seen.longest_gap < SLOW
    assert held["kept"]
    assert held["rival_waited"]


@pytest.mark.nightly
@three
async def test_nodes_restarted_without_pause_cost_time_but_no_safety(who: str, nodes: int) -> None:
    """Bodies last longer than a restart, so that nodes forget leases that are held."""
    async with stage(who, nodes, ttl=1.0, max_ttl=1.0) as there:
        seen = await scenes.restarts(there, 0.1, seconds=12.0, body=0.6)
    assert seen.violations == 0
    assert seen.longest_gap < 5 + SLOW  # all of them are young together


@everybody
async def test_a_node_that_flaps(who: str, nodes: int) -> None:
    async with stage(who, nodes, ttl=2.0) as there:
        seen = await scenes.flapping(there, seconds=3)
    assert seen.violations == 0
    assert sum(seen.counts) > 0
    if who == "asynclock":  # callers wait, and none has to try again
        safe(seen)


@everybody
@pytest.mark.parametrize(("ttl", "lost"), [(1.0, True), (30.0, False)])
async def test_a_blocked_event_loop_loses_the_lock_only_if_it_blocks_for_the_ttl(
    who: str, nodes: int, ttl: float, *, lost: bool
) -> None:
    async with stage(who, nodes, ttl=ttl, max_ttl=30.0, restart_guard=False) as there:
        seen = await scenes.blocked_loop(there, 4.0 if lost else 1.0)
    assert (seen["next_before_the_end"], seen["told"]) == (lost, lost)
    if who == "asynclock":  # the body ends at the next thing that it awaits
        assert seen["went_on"] != lost


@everybody
async def test_an_application_that_starts_before_its_nodes(who: str, nodes: int) -> None:
    settings = {"max_ttl": 1.0} if nodes > 1 else {"max_ttl": 10.0}
    async with stage(who, nodes, ttl=1.0, **settings) as there:
        seen = await scenes.early_application(there, late=1.0)
    # Empty nodes of a quorum first wait for the longest ttl, and for three seconds at most.
    assert seen["until_first"] < 4 + 2 * SLOW  # the nodes have to start as well
    if who == "asynclock":
        assert seen["errors_before"] == 0  # it waits, and nobody has to start it again


@everybody
async def test_a_cold_start_over_a_link_of_thirty_milliseconds(who: str, nodes: int) -> None:
    async with stage(who, nodes) as there:
        seen = await scenes.cold_start(there, 0.015)
    assert seen["connections"] == 1
    # A plain connection over the same link counts the round trips meanwhile. asynclock opens in two
    # and takes each lock in one; redis-py opens with its first lock, in four.
    assert seen["connect_exchanges"] <= 8
    assert seen["first_exchanges"] <= 8
    assert seen["second_exchanges"] <= 4
    if not BUSY:
        assert seen["connect"] < 1
        assert seen["first_lock"] < 6 * 0.030


@ours
async def test_a_leader_dies_and_the_next_one_follows(who: str, nodes: int) -> None:
    async with stage(who, nodes, ttl=1.0) as there:
        seen = await scenes.leader_dies(there)
    assert seen["leaders"] == 3
    assert seen["terms_rise"]
    assert seen["longest_without"] < 1 + SLOW
