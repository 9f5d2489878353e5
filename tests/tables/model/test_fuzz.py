"""Scripts and ballot against real servers under random trouble: see fuzz.py.

A failing seed replays exactly: run its test alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

import pytest

from asynclock._nodes.script import Script
from asynclock._primitives.lock import SCRIPT
from asynclock._rules.quorum import Ballot
from asynclock.testing.plugin import StartServers
from tests.tables.model.fuzz import Stats, Violation, Wire, World

GUARD = (files("asynclock.fencing") / "guard.lua").read_text("utf-8")
STEPS = 400

Run = Callable[..., Awaitable[Stats]]


@pytest.fixture
def run(asynclock_servers: StartServers) -> Run:
    """Runs a world on real servers, as many as asked for."""

    async def run(
        seed: int,
        *,
        rounds: int,
        size: int = 3,
        script: Script = SCRIPT,
        ballot: type[Ballot] = Ballot,
        guard: str = GUARD,
    ) -> Stats:
        wires = [Wire(server.port) for server in await asynclock_servers(size)]
        world = World(wires, script, guard, seed, ballot)
        try:
            for _ in range(rounds):
                world.round(STEPS)
        finally:
            for wire in wires:
                wire.socket.close()
            print(f"seed {seed}: {world.stats}")
        return world.stats

    return run


@pytest.mark.parametrize(("seed", "size"), [(1, 3), (2, 3), (11, 5), (4, 1)])
async def test_fences_stay_unique_and_rising_and_scripts_mean_what_they_say(
    run: Run, seed: int, size: int
) -> None:
    stats = await run(seed, rounds=60, size=size)
    assert min(stats.held, stats.lost) > 50
    assert stats.handed_over > 5
    assert stats.written_back > 50 or size == 1
    assert stats.batches > 200
    assert stats.exchanges > 5


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 120))
async def test_many_seeds(run: Run, seed: int) -> None:
    await run(seed, rounds=300, size=3 + 2 * (seed % 2))


class Maximum(Ballot):
    """Naive: holds with the largest fence of a quorum, and writes nothing back."""

    def _agree(self, fence: int) -> None:
        self.fence = max(self.claims.values())
        self._support = len(self.claims)


class OneLess(Ballot):
    """Naive: a vote short of a quorum is enough."""

    def __init__(self, size: int, quorum: int) -> None:
        super().__init__(size, quorum - 1)


@pytest.mark.parametrize("ballot", [Maximum, OneLess])
async def test_a_naive_ballot_is_caught(run: Run, ballot: type[Ballot]) -> None:
    with pytest.raises(Violation, match=r"fence \d+"):
        await run(5, rounds=100, ballot=ballot)


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("owner, 'NX', 'PX', ARGV[3])", "owner, 'PX', ARGV[3])"),
        ("if not has(1, #KEYS, ARGV[2]) or counter > fence", "if counter > fence"),
        (" or counter > fence and not shared", ""),
        ("return not_after > 0 and now > not_after", "return false"),
        ("has(first, last, owner) and '1' or '0'", "'1'"),
        ("if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, '', now} end", ""),
        ("string.format('%.0f', fence)", "tostring(fence)"),
        ("fence > now + FLOOR_AHEAD", "false"),
        ("if before < fence then", "if true then"),
        ("before + 1", "before"),
        (", 'PX', time_to_keep(fence, retention)", ""),
        ("owner, 'NX', 'PX', ARGV[3])", "owner, 'NX')"),
        # the queue
        ("barge or not head or head == ticket", "true"),
        ("if value then return ticket, value end", "if true then return ticket, value end"),
        ("if ticket and value ~= GO then", "if false then"),
        ("number > 0 and ms > 0 and settled ~= number", "false"),
        ("if number ~= stored then", "if not stored then"),
        ("(tonumber(last) or 0) + 1", "0"),
        ("math.max(floor, (tonumber(last) or 0) + 1)", "(tonumber(last) or 0) + 1"),
        ("string.format('%.0f', number)", "tostring(number)"),
        ("WAITS, 'PX', ms)", "WAITS)"),
        ("redis.call('PEXPIRE', queue, ms)", ""),
        ("redis.call('ZREM', queue, ticket)\n  redis.call('DEL'", "redis.call('DEL'"),
        ("    leave(queue, ARGV[2])\n", ""),
        ("if ticket then join(queue, ticket, ARGV[5]", "if false then join(queue, ticket, ARGV[5]"),
        ("if ARGV[3] == '1' then", "if false then"),
        # the batch
        ("ARGV[7 + i], 'NX', 'PX', ttl)", "ARGV[7 + i], 'PX', ttl)"),
        ("ARGV[7 + i], 'NX', 'PX', ttl)", "ARGV[7 + i], 'NX')"),
        ("if reply == ARGV[7 + i] then", "if type(reply) == 'string' then"),
        ("reply = call('DEL', KEYS[i])", "reply = 1"),
        ("names + 1, 2 * names)) == 0", "names + 1, 2 * names)) >= 0"),
        ("KEYS, names + 1, 2 * names)", "KEYS, names + 1, names + releases)"),
        ("(quiet or call('PTTL', KEYS[names + i]) == -2)", "true"),
        ("call('PTTL', KEYS[names + i]) ~= -2 then", "false then"),
        ("local late = too_late()", "local late = false"),
        ("value and value >= 0 and value < fence then", "true then"),
        ("SET', counter, text, 'PX', keep,", "SET', counter, text,"),
        ("keep = least(ARGV[4], ARGV[6])", "keep = tonumber(ARGV[4]), ARGV[4], ARGV[6]"),
        ("reply then\n      rest[#rest + 1] = i", "reply then\n      table.insert(rest, 1, i)"),
        ("ARGV[5], ARGV[6], ARGV[7]}", "ARGV[5], ARGV[6]}"),
    ],
)
async def test_a_script_that_lacks_a_guard_is_caught(run: Run, correct: str, wrong: str) -> None:
    assert correct in SCRIPT.source, "the script has changed: so must this test"
    with pytest.raises(Violation):
        await run(6, rounds=100, script=Script(SCRIPT.source.replace(correct, wrong)))


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("if fence < highest then return {0, highest} end", ""),
        ("redis.call('SET', KEYS[1], kept)", ""),
        ("fence < highest", "fence <= highest"),
    ],
)
async def test_a_store_that_does_not_check_is_caught(run: Run, correct: str, wrong: str) -> None:
    assert correct in GUARD, "the script has changed: so must this test"
    with pytest.raises(Violation):
        await run(7, rounds=100, guard=GUARD.replace(correct, wrong))
