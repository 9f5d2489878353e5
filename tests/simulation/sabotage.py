"""Ways to break the library that a suite which proves anything must notice.

Those of hooks.py replace a function. Most of the others edit one: the text that
is replaced must be there exactly once, so that a sabotage can't become a harmless one unseen when
the code around it changes.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asynclock import _clock, _connect
from asynclock._engine import renewal
from asynclock._engine.acquire import Acquire
from asynclock._engine.attempt import Attempt
from asynclock._engine.batch import Batch
from asynclock._engine.fences import Reservation
from asynclock._engine.lease import Lease
from asynclock._engine.local_queue import LocalQueue
from asynclock._engine.message import Message
from asynclock._engine.renewal import Renewals
from asynclock._engine.restoring import Restores
from asynclock._engine.round import Round
from asynclock._nodes.link import Link
from asynclock._nodes.multiplexer import Multiplexer
from asynclock._nodes.script import Script
from asynclock._nodes.server import ServerNode
from asynclock._primitives import base, fair, lock
from asynclock._rules import validity
from asynclock._rules.quorum import Ballot
from asynclock._rules.trust import Trust
from tests.simulation.hooks import HOOKS

Break = Callable[[pytest.MonkeyPatch], None]
SABOTAGES: dict[str, Break] = {}
OPTIONS: dict[str, dict[str, Any]] = {}
"""Under which plan each is noticed soon; by default that of most seeds. Besides, what changes the
plan or the world's nature: a sabotage may be a setting."""


def _sabotage(**options: Any) -> Callable[[Break], Break]:
    def register(function: Break) -> Break:
        SABOTAGES[function.__name__] = function
        OPTIONS[function.__name__] = {"plan": "locks", **options}
        return function

    return register


for _name, _hook in HOOKS.items():
    SABOTAGES[_name] = _hook.break_it
    OPTIONS[_name] = {"plan": _hook.plan}


@contextlib.contextmanager
def sabotaged(name: str) -> Iterator[dict[str, Any]]:
    """Break the library in one way; return the options of a run that belong to it."""
    with pytest.MonkeyPatch.context() as patch:
        SABOTAGES[name](patch)
        lock.spec.cache_clear()  # what is kept has the good script, or afterwards the bad one
        try:
            yield OPTIONS[name]
        finally:
            lock.spec.cache_clear()
            gc.collect()  # managers that a broken library could not close


def _edit(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Replace some source inside a function of `owner`, a class or a module."""
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{name} has {old!r} {source.count(old)} times"
    source = "from __future__ import annotations\n" + source.replace(old, new)
    names = {"_clock": _clock, **vars(sys.modules[function.__module__])}
    found: dict[str, Any] = {}
    exec(compile(source, f"<{name}, sabotaged>", "exec"), names, found)
    patch.setattr(owner, name, found[name])


def _edit_script(patch: pytest.MonkeyPatch, old: str, new: str, times: int = 1) -> None:
    source = lock.SCRIPT.source
    assert source.count(old) == times, f"the script has {old!r} {source.count(old)} times"
    script = Script(source.replace(old, new))
    patch.setattr(lock, "SCRIPT", script)
    # Each connection loads it at once, as it loads the good one.
    patch.setattr(_connect, "SCRIPTS", (*_connect.SCRIPTS, script))


# ---- one holder at a time ----------------------------------------------------------------------


@_sabotage()
def release_without_owner_check(patch: pytest.MonkeyPatch) -> None:
    _edit_script(patch, "if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, '', now} end", "")


@_sabotage()
def acquire_without_owner_check(patch: pytest.MonkeyPatch) -> None:
    _edit_script(patch, "'NX', 'PX', ARGV[3])", "'PX', ARGV[3])", times=2)


@_sabotage()
def quorum_minus_one(patch: pytest.MonkeyPatch) -> None:
    init = Multiplexer.__init__

    def fewer(self: Multiplexer, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.quorum = max(1, self.quorum - 1)

    patch.setattr(Multiplexer, "__init__", fewer)


@_sabotage(restart_guard=False)
def restart_guard_ignored(_patch: pytest.MonkeyPatch) -> None:
    """Nothing to patch: it is a setting."""


@_sabotage(plan="leaps", clock_guard=False)
def jumps_without_quarantine(_patch: pytest.MonkeyPatch) -> None:
    """A setting, too."""


@_sabotage()
def quarantined_nodes_count(patch: pytest.MonkeyPatch) -> None:
    _edit(patch, ServerNode, "obstacle", "now < self.trust.votes_from and", "False and")
    _edit(patch, Attempt, "on_reply", "self.started < node.trust.votes_from", "False")
    _edit(patch, Batch, "on_reply", "self.started < node.trust.votes_from", "False")


@_sabotage(faults=("freeze_process_in_an_attempt",))
def validity_from_the_end(patch: pytest.MonkeyPatch) -> None:
    """A lease counted from the replies instead of from before the request."""

    def late(attempt: Attempt) -> float:
        return validity.valid_until(_clock.now(), attempt._ttl)

    patch.setattr(Attempt, "valid_until", property(late, lambda _self, _value: None))
    batch = property(lambda batch: validity.valid_until(_clock.now(), batch.ttl), lambda *_: None)
    patch.setattr(Batch, "valid_until", batch)


@_sabotage(plan="answers")
def renewal_from_the_reply(patch: pytest.MonkeyPatch) -> None:
    _edit(patch, Round, "_grant", "grant, self._sent", "grant, _clock.now()")


@_sabotage(plan="stretches")
def an_extension_in_flight_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A renewal at the old ttl overtakes nothing, and a longer extension counts after all."""
    old = "max(grant.valid_until, grant.asked_until)"
    _edit(patch, renewal, "_shortens", old, "grant.valid_until")
    _edit(patch, Renewals, "_renew", "grant.wanted_ttl", "grant.ttl")


@_sabotage(plan="ttls", faults=("lose_replies",))
def a_shorter_ttl_counts_when_it_is_answered(patch: pytest.MonkeyPatch) -> None:
    _edit(patch, Renewals, "extend", "self._shorten(grant, until, number, ttl)", "pass")


@_sabotage(plan="ttls")
def extend_takes_any_ttl(patch: pytest.MonkeyPatch) -> None:
    old = "ttl = _settings.ttl(ttl, node_timeout=timeout, max_ttl=longest)"
    _edit(patch, Lease, "extend", old, "pass")


@_sabotage(plan="tasks")
def each_leave_ends_the_last_that_entered(patch: pytest.MonkeyPatch) -> None:
    new = "if not mine and self:\n        return self.pop()\n    if not mine:"
    _edit(patch, base.Entered, "leave", "if not mine:", new)


@_sabotage(plan="witnesses")
def a_node_that_forgot_has_a_say(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Trust, "remembers_from", property(lambda _: float("-inf"), lambda *_: None))


@_sabotage(plan="rolling")
def no_key_is_put_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Restores, "missing", lambda *_: None)


@_sabotage(plan="drifting")
def no_margin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(validity, "DRIFT", 0.0)
    patch.setattr(validity, "GRAIN", 0.0)


# With the clock guard on, a clock set back looks like one that stood still, and is survived.
@_sabotage(trusts_wall_clocks=True, clock_guard=False)
def wall_clock_for_validity(_patch: pytest.MonkeyPatch) -> None:
    """`held` asks a clock that may be set back: an option of the world."""


@_sabotage(plan="late hand-overs")
def hand_over_unchecked(patch: pytest.MonkeyPatch) -> None:
    old = "or grant.valid_until - now <= least"
    _edit(patch, Acquire, "_take_over", old, "")
    # A turn ends long before the lease does, so that is not looked at either.
    _edit(
        patch,
        LocalQueue,
        "hand_on",
        "now >= grant.valid_until or self.used_up(grant, now)",
        "False",
    )


# ---- fences ------------------------------------------------------------------------------------


# Counters only disagree where the clock does not raise them all to one floor.
@_sabotage(plan="fences")
def write_back_skipped(patch: pytest.MonkeyPatch) -> None:
    """The largest claim of a quorum, without making it everybody's."""

    def write_back(self: Ballot, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            self.claims[node] = self.fence
            self._support += 1

    def agree(self: Ballot, _fence: int) -> None:
        self.fence = max(self.claims.values())
        self.claims = dict.fromkeys(self.claims, self.fence)
        self._support = len(self.claims)

    patch.setattr(Ballot, "_agree", agree)
    patch.setattr(Ballot, "_write_back", write_back)


@_sabotage(plan="raises")
def raise_without_owner_check(patch: pytest.MonkeyPatch) -> None:
    old = "if redis.call('GET', KEYS[1]) ~= ARGV[2] or counter > fence then"
    _edit_script(patch, old, "if counter > fence then")


@_sabotage(plan="blocks")
def reserved_at_one_node(patch: pytest.MonkeyPatch) -> None:
    _edit(patch, Reservation, "__init__", "nodes.quorum", "1")


@_sabotage(plan="pairs")
def a_block_from_own_plus_one(patch: pytest.MonkeyPatch) -> None:
    # Alone it does no harm. If the largest previous counter is our own fence, both rules say the
    # same. If that counter is larger, the guard that follows refuses a block that starts below it.
    # It is not smaller, because the nodes that claimed our fence and those that were raised share
    # a node. So the guard goes, too; without the guard alone, the block starts above the counter.
    between, guard = "\n    grant = self._grant\n    if ", "grant.reserving is self._done"
    old = f"highest + 1{between}{guard} and first > max(highest, grant.fence):"
    new = f"self._grant.fence + 1{between}{guard}:"
    _edit(patch, Reservation, "_claim", old, new)


# ---- nothing is left, no task waits too long ----------------------------------------------------


@_sabotage(plan="strays")
def late_requests_run(patch: pytest.MonkeyPatch) -> None:
    _edit_script(patch, "not_after > 0 and now > not_after", "false", times=2)


@_sabotage(plan="strays")
def a_first_acquire_without_a_deadline(patch: pytest.MonkeyPatch) -> None:
    _edit(patch, Attempt, "ask", "command.give_up_at = until", "pass")
    _edit(patch, Message, "__init__", "0.0 if limits[1] else give_up_at", "0.0")


@_sabotage(plan="crowd")
def a_lost_turn(patch: pytest.MonkeyPatch) -> None:
    _edit(patch, Acquire, "_leave", "if turn is None:", "if True:")


@_sabotage(plan="waits")
def a_late_timer_waits_as_long_again(patch: pytest.MonkeyPatch) -> None:
    _edit(patch, Link, "_check_time", "self._arm(min(late, self.timeout))", "self._arm(late)")


# ---- who goes first -----------------------------------------------------------------------------


@_sabotage(plan="order")
def newcomers_are_granted_a_free_name(patch: pytest.MonkeyPatch) -> None:
    _edit_script(patch, "barge or not head or head == ticket, nil", "true, nil")
    patch.setattr(fair, "SCRIPT", lock.SCRIPT)


@_sabotage(plan="order")
def a_later_waiter_gets_a_smaller_number(patch: pytest.MonkeyPatch) -> None:
    old = "number = math.max(floor, (tonumber(last) or 0) + 1)"
    _edit_script(patch, old, "number = math.max(1, (tonumber(last) or floor) - 1)")
    patch.setattr(fair, "SCRIPT", lock.SCRIPT)
