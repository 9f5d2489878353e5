"""What `inspect --all`, `top` and the page find on nodes in memory, and what has changed since."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import asynclock
from asynclock._access import node_access
from asynclock._inspect.monitor import Monitor
from asynclock._inspect.survey import Survey, held, survey
from asynclock.testing import MemoryNode, memory_node
from asynclock.testing.memory.keyspace import ReplyError
from tests.waiting import in_virtual_time, until

NODES = ("memory://a", "memory://b", "memory://c")
QUICK: dict[str, Any] = {"restart_guard": False, "ttl": 10.0, "label": "web-1:7"}


def connect(*nodes: str, **more: Any) -> asynclock.LockManager:
    return asynclock.connect(*(nodes or NODES), **{**QUICK, **more})


def refuse(patch: pytest.MonkeyPatch, command: bytes, said: str, node: str) -> None:
    """Let a node answer a command with an error."""
    answer = MemoryNode.answer

    def refusing(self: MemoryNode, client: Any, words: Any) -> Any:
        if words[0] == command and self is memory_node(node):
            return ReplyError(said)
        return answer(self, client, words)

    patch.setattr(MemoryNode, "answer", refusing)


# ---- what is found -------------------------------------------------------------------------------


@in_virtual_time
async def test_more_than_a_page_of_locks_is_found_once_each_in_their_order() -> None:
    names = [f"n{number:04d}" for number in range(700)]
    async with connect() as locks:
        for name in names:
            for node in NODES:
                await memory_node(node).command("SET", f"asynclock:{name}", "o:h:1", "PX", 60_000)
        for _ in range(2):
            assert await locks.semaphore("m", 2).acquire()
        found = await survey(node_access(locks))
        assert [one.name for one in found.held] == ["m", "m", *names]
        assert [one.part for one in found.held[:2]] == ["0", "1"]
        assert all(len(one.nodes) == 3 and one.owner for one in found.held)
        assert found.held[0].fence > 0
        assert not found.errors


@pytest.mark.parametrize("name", ["a*", "a?", "[ab]c", "back\\slash", "^[a-z]$"])
@in_virtual_time
async def test_a_name_of_marks_is_only_itself(name: str) -> None:
    """SCAN would read them as a pattern."""
    async with connect(prefix="p[1]*:") as locks:
        async with locks.lock(name), locks.lock("ac"), locks.semaphore(name, 1).acquire():
            found = await survey(node_access(locks), name)
            assert [(one.name, one.kind) for one in found.held] == [
                (name, "lock"),
                (name, "semaphore"),
            ]


@in_virtual_time
async def test_what_is_no_lock_of_ours_is_passed_over() -> None:
    async with connect("memory://a") as locks:
        for words in (
            ("ZADD", "asynclock:list", 1, "x"),
            ("SET", "another:lock", "x"),
            ("ZADD", "asynclock:x:#event", 1, "x"),
            ("SET", b"asynclock:\xff", "x"),
            ("SET", "asynclock:counter:#fence", 1),
        ):
            await memory_node("a").command(*words)
        found = await survey(node_access(locks))
        assert (found.held, found.errors, found.states, found.waiting) == ([], {}, [], {})


@in_virtual_time
async def test_each_reader_is_found_and_each_queue() -> None:
    async with connect(label="web-2:8") as others, connect() as locks:
        for _ in range(2):
            assert await locks.rwlock("book").read().acquire()
        held_ = await locks.lock("busy").acquire()
        waiting = [
            asyncio.ensure_future(others.rwlock("book").write().acquire()),
            asyncio.ensure_future(others.lock("busy").acquire()),
        ]

        async def both_wait() -> bool:
            return len((await survey(node_access(locks))).waiting) == 2

        await until(both_wait, "both wait", every=0.1)
        memory_node("c").freeze()
        found = await survey(node_access(locks))
        assert [(one.name, one.kind) for one in found.held] == [
            ("book", "rwlock"),
            ("book", "rwlock"),
            ("busy", "lock"),
        ]
        labels = {name: [one.label for one in queue] for name, queue in found.waiting.items()}
        assert labels == {"book": ["web-2:8"], "busy": ["web-2:8"]}
        assert [len(one.waiting) for one in found.held] == [1, 1, 1]
        assert held_.held
        for task in waiting:
            task.cancel()


@in_virtual_time
async def test_all_that_wait_for_a_name_are_found_whatever_its_kind() -> None:
    async with connect(label="web-2:8") as others, connect() as locks:
        assert await locks.lock("x").acquire()
        assert await locks.rwlock("x").read().acquire()
        waiting = [
            asyncio.ensure_future(others.lock("x").acquire()),
            asyncio.ensure_future(others.rwlock("x").write().acquire()),
        ]

        async def both_wait() -> bool:
            queues = (await survey(node_access(locks))).waiting
            return len(queues.get("x", ())) == 2

        await until(both_wait, "both wait", every=0.1)
        for task in waiting:
            task.cancel()


@in_virtual_time
async def test_a_command_that_fails_hides_no_other_locks() -> None:
    """The owners of many locks are asked for in several commands."""
    async with connect("memory://a") as locks:
        for number in range(120):
            await memory_node("a").command("SET", f"asynclock:{number}", "o:h:1", "PX", 60_000)
        answer = MemoryNode.answer
        failed: list[Any] = []

        def refusing(self: MemoryNode, client: Any, words: Any) -> Any:
            if words[0] == b"EVALSHA" and not failed:
                failed.append(words)
                return ReplyError("OOM once")
            return answer(self, client, words)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryNode, "answer", refusing)
            found = await survey(node_access(locks))
        assert "OOM once" in found.errors["memory://a"]
        assert len(found.held) == 120 - 50


@in_virtual_time
async def test_states_are_found_on_any_node() -> None:
    async with connect() as locks:
        await locks.event("bell").set()
        await locks.latch("done", 3).count_down()
        await memory_node("a").command("DEL", "asynclock:bell:#event")
        memory_node("b").freeze()
        found = await survey(node_access(locks))
        assert [(one.name, one.kind, one.support) for one in found.states] == [
            ("bell", "event", 1),
            ("done", "latch", 2),
        ]
        assert [view.error is None for view in found.states[0].nodes] == [True, False, True]


# ---- nodes that don't answer ---------------------------------------------------------------------


@in_virtual_time
async def test_a_silent_node_does_not_seem_to_say_that_a_lock_is_free() -> None:
    async with connect() as locks:
        async with locks.lock("a"):
            memory_node("b").freeze()
            found = await survey(node_access(locks))
            (one,) = found.held
            assert [view.owner is None for view in one.nodes] == [False, True, False]
            assert [view.error is None for view in one.nodes] == [True, False, True]
            assert list(found.errors) == ["memory://b"]
            assert one.quorum == 2
            assert [each.name for each in await held(node_access(locks))] == ["a"]
            memory_node("c").freeze()
            with pytest.raises(asynclock.QuorumUnavailableError) as caught:
                await held(node_access(locks))
            assert caught.value.nodes.keys() == {"memory://b", "memory://c"}


@pytest.mark.parametrize("command", [b"SCAN", b"EVALSHA"])
@in_virtual_time
async def test_a_node_whose_user_may_not_look_is_named(command: bytes) -> None:
    async with connect() as locks:
        async with locks.lock("a"):
            with pytest.MonkeyPatch.context() as patch:
                refuse(patch, command, "NOPERM this user has no permissions", "b")
                found = await survey(node_access(locks))
        assert list(found.errors) == ["memory://b"]
        assert "NOPERM" in found.errors["memory://b"]
        assert [one.name for one in found.held] == ["a"]


@pytest.mark.parametrize(
    ("nodes", "silent", "said"),
    [
        (1, 0, ""),
        (1, 1, ", but only 0 of 1 nodes answered"),
        (3, 1, ""),
        (3, 2, ", but only 1 of 3 nodes answered"),
        (4, 1, ""),
        (4, 2, ", but only 2 of 4 nodes answered"),
        (5, 2, ""),
        (5, 3, ", but only 2 of 5 nodes answered"),
    ],
)
def test_whether_a_survey_can_be_complete(nodes: int, silent: int, said: str) -> None:
    errors = {f"n{number}": "no answer" for number in range(silent)}
    assert Survey([], errors).shortfall(nodes) == said


# ---- what has changed ----------------------------------------------------------------------------


@in_virtual_time
async def test_what_happened_between_two_looks_is_counted() -> None:
    monitor = Monitor()
    async with connect(label="web-2:8") as others, connect() as locks:
        before = await locks.lock("before").acquire()
        await monitor.refresh(locks)
        assert not monitor.counts, "what was held at the start was not acquired since"
        first = await locks.lock("first").acquire()
        dies = await locks.lock("dies", renew=False).acquire()
        await asyncio.sleep(1.0)
        await monitor.refresh(locks)
        assert monitor.counts == {"acquired": 2}
        await first.release()
        await monitor.refresh(locks)
        await monitor.refresh(locks)
        assert monitor.counts == {"acquired": 2, "released": 1}
        assert {name for name, _, _ in monitor.leases} == {"before", "dies"}
        # Another owner of the same name is another lease.
        await before.release()
        before = await others.lock("before").acquire()
        await monitor.refresh(locks)
        assert monitor.counts == {"acquired": 3, "released": 2}
        # Nobody renews this one, so it runs out between two looks.
        for _ in range(13):
            await asyncio.sleep(1.0)
            await monitor.refresh(locks)
        assert monitor.counts == {"acquired": 3, "released": 2, "ran out": 1}
        (seen,) = monitor.leases.values()
        assert seen.last_seen - seen.first_seen == pytest.approx(13.0, abs=0.1)
        assert before.held
        assert not dies.held


@in_virtual_time
async def test_while_no_node_answers_nothing_is_known_to_have_changed() -> None:
    monitor = Monitor()
    async with connect(node_timeout=0.2) as locks:
        leases = [await locks.rwlock("book").read().acquire() for _ in range(2)]
        await monitor.refresh(locks)
        assert len(monitor.leases) == 2, "each reader"
        assert monitor.trouble is None
        for node in NODES:
            memory_node(node).freeze()
        await monitor.refresh(locks)
        assert len(monitor.leases) == 2
        assert not monitor.counts
        assert monitor.trouble is not None
        assert monitor.trouble.level == "red"
        for node in NODES[1:]:
            memory_node(node).thaw()
        await leases[0].release()
        await monitor.refresh(locks)
        assert monitor.counts == {"released": 1}, "two of three nodes are enough to tell"


@in_virtual_time
async def test_what_a_server_says_of_itself_or_why_it_does_not() -> None:
    monitor = Monitor()
    async with connect("memory://a", "memory://b", "memory://c") as locks:
        with pytest.MonkeyPatch.context() as patch:
            refuse(patch, b"INFO", "NOPERM not you", "b")
            answer = MemoryNode.answer

            def telling(self: MemoryNode, client: Any, words: Any) -> Any:
                reply = answer(self, client, words)
                if words[0] != b"INFO" or not isinstance(reply, bytes):
                    return reply
                return reply + b"\r\ntracking_total_keys:5\r\nconnected_clients:9\r\n"

            patch.setattr(MemoryNode, "answer", telling)
            await locks.ready()
            await monitor.refresh(locks)
    one, other, _ = monitor.nodes
    assert (one.health.node, one.cause, one.watched, one.clients) == ("memory://a", "", "5", "9")
    assert (other.watched, other.clients) == ("", "")
    assert "NOPERM not you" in other.cause
