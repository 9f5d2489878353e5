"""Ways to break the library that a suite which proves anything must notice.

Each replaces a function of Python or of a script by one that does something else, or lets a command
of a script lie. They name what they replace and say nothing of its text, so the code can change.
"""

import contextlib
import gc
import math
import re
from collections.abc import Callable, Iterator, Sequence
from types import MemberDescriptorType
from typing import Any, NamedTuple

import pytest

from asynclock import _clock, _settings
from asynclock._engine.acquire import Acquire
from asynclock._engine.attempt import Attempt
from asynclock._engine.context import Context
from asynclock._engine.engine import Engine
from asynclock._engine.grant import Grant, Interruption, LocalQueue, Reservation
from asynclock._engine.lease import Lease
from asynclock._engine.outbox import Ask, Batch, Release
from asynclock._engine.renewal import Extension, Renewals
from asynclock._engine.seek import Seek
from asynclock._engine.spec import OwnerIds
from asynclock._nodes.link import Link
from asynclock._nodes.multiplexer import Multiplexer
from asynclock._nodes.server import ServerNode
from asynclock._nodes.wire import Script
from asynclock._primitives import base, lock, multi, readwrite
from asynclock._primitives.shared import register
from asynclock._rules import validity
from asynclock._rules.quorum import Ballot
from asynclock._rules.validity import StandStill, Trust
from tests.tables.inside import forget_specs

Break = Callable[[pytest.MonkeyPatch], None]
LOCK = (lock.SCRIPT,)
READ, WRITE = (readwrite.READ,), (readwrite.WRITE,)
SIDES = READ + WRITE
SEVERAL, STATES = (multi.SCRIPT,), (register.SCRIPT,)


# ---- how to break something --------------------------------------------------------------------
def swap(owner: Any, name: str, replace: Callable[[Any], Any]) -> Break:
    """Let what `replace` makes of it take the place of a function, an attribute or a constant."""

    def break_it(patch: pytest.MonkeyPatch) -> None:
        old = vars(owner).get(name)
        if name not in vars(owner):  # what only instances have is replaced as a slot is
            assert name in owner.__init__.__code__.co_names, name
            old = property()
        patch.setattr(owner, name, replace(old), raising=False)

    return break_it


def _change(
    patch: pytest.MonkeyPatch, scripts: Sequence[Script], change: Callable[[str], str]
) -> None:
    changed = [Script(change(script.source)) for script in scripts]
    before = [script.sha for script in scripts]
    for script, other in zip(scripts, changed, strict=True):
        patch.setattr(script, "source", other.source)
        patch.setattr(script, "sha", other.sha)
    assert before != [script.sha for script in scripts], "no script was changed"


def lua(scripts: Sequence[Script], function: str, body: str) -> Break:
    """Give a function of scripts another body."""
    found = re.compile(rf"^(local function {function}\([^)]*\)).*?^end$", re.MULTILINE | re.DOTALL)

    def break_it(patch: pytest.MonkeyPatch) -> None:
        _change(patch, scripts, lambda source: found.sub(rf"\1 {body} end", source, 1))

    return break_it


LIE = """
local real = redis
local function lie(command, key, value, ...) {body} end
local function told(how) return function(command, ...)
  local said = lie(command, ...)
  if said ~= nil then return said end
  return how(command, ...)
end end
local redis = setmetatable(
  {{call = told(real.call), pcall = told(real.pcall)}}, {{__index = real}})
"""


def lie(body: str, scripts: Sequence[Script] = LOCK) -> Break:
    """Let commands of scripts reply what `body` returns for their words, if it does."""

    def break_it(patch: pytest.MonkeyPatch) -> None:
        _change(patch, scripts, LIE.format(body=body).__add__)

    return break_it


def answers(scripts: Sequence[Script], op: str, command: str, key: int, value: str) -> Break:
    """Let a command reply a value for one of the keys of an operation."""
    asked = f"ARGV[1] == '{op}' and command == '{command}' and key == KEYS[{key}]"
    return lie(f"if {asked} then return {value} end", scripts)


def told(statement: str, scripts: Sequence[Script] = LOCK) -> Break:
    """Let scripts be told other arguments than the client sent."""

    def break_it(patch: pytest.MonkeyPatch) -> None:
        _change(patch, scripts, f"{statement}\n".__add__)

    return break_it


# ---- what takes the place of a function --------------------------------------------------------
def nothing(_: Any) -> Any:
    """Make a function that does nothing."""
    return lambda *_args, **_options: None


def always(value: object) -> Callable[[Any], Any]:
    """Make a function, an attribute or a constant with one value."""

    def replace(old: Any) -> Any:
        if isinstance(old, property | MemberDescriptorType):
            return property(lambda _: value, lambda *_: None)
        return (lambda *_args, **_options: value) if callable(old) else value

    return replace


def later(old: Any) -> Any:
    """Make a function whose moment is half a second later."""
    return lambda *args: old(*args) + 0.5


def after(set_: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Make a function that does something to its object besides, in the end."""

    def replace(old: Any) -> Any:
        def function(self: Any, *args: Any, **options: Any) -> None:
            old(self, *args, **options)
            set_(self)

        return function

    return replace


def changed(act: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make a function whose arguments `act` changes first."""
    return lambda old: lambda self, *args: old(self, *act(self, *args))


def does(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make a function that does this instead."""
    return lambda _old: function


def _stamped_late(_: Any, grant: Grant, _until: float, sent: float) -> tuple[Any, ...]:
    return grant, validity.valid_until(_clock.now(), grant.ttl), sent


def _one_decides(reservation: Any) -> None:
    reservation._quorum = 1


def _given_back_by_the_first(grant: Any) -> None:
    if grant.bodies:
        grant.lease._engine.release(grant)


def _one_node_fewer(nodes: Any) -> None:
    nodes.quorum = max(1, nodes.quorum - 1)


def largest_claim(_: Any) -> Any:
    """Let the largest claim of a quorum count without making it everybody's."""

    def agree(ballot: Ballot) -> None:
        ballot.fence = max(ballot.claims.values())
        ballot.claims = dict.fromkeys(ballot.claims, ballot.fence)
        ballot._support = len(ballot.claims)

    return agree


def at_once(_: Any) -> Any:
    """Count a fence that was written back before the nodes have accepted it."""

    def write_back(ballot: Ballot, nodes: tuple[int, ...]) -> None:
        for node in nodes:
            ballot.claims[node] = ballot.fence
            ballot._support += 1

    return write_back


def _from_now(one: Any) -> float:
    return validity.valid_until(_clock.now(), one.ttl if isinstance(one, Batch) else one._ask.ttl)


def counted_from_the_replies(_: Any) -> Any:
    """Make a validity that begins when it is asked for."""
    return property(_from_now, lambda *_: None)


OURS = """
  for i = 1, #KEYS do
    if ARGV[1] == 'batch' and command == 'GET' and KEYS[i] == key and i <= tonumber(ARGV[2]) then
      return ARGV[7 + i]
    end
  end
  if ARGV[1] == 'release' and command == 'GET' and key == KEYS[1] then return ARGV[2] end
"""
TAKEN_OVER = """
  if command == 'SET' and (...) == 'NX' then
    return real.call('SET', key, value, 'PX', (select(3, ...)))
  end
"""
EARLIER_NUMBER = """
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  if number <= 0 then
    number = tonumber(redis.call('ZSCORE', queue, ticket))
      or math.max(1, (tonumber(last) or floor) - 1)
  end
  redis.call('ZADD', queue, string.format('%.0f', number), ticket)
  redis.call('SET', derived(queue, ticket), WAITS, 'PX', ms)
  redis.call('PEXPIRE', queue, ms)
  return number
"""


class Sabotage(NamedTuple):
    """A way to break the library, and the schedules that notice it soon."""

    plan: str
    breaks: tuple[Break, ...]
    options: dict[str, Any]
    """What changes the plan or the nature of the world: a sabotage may be a setting."""


def under(plan: str, *breaks: Break, **options: Any) -> Sabotage:
    """Make a sabotage that schedules of this plan notice."""
    return Sabotage(plan, breaks, options)


SABOTAGES = {
    # one holder at a time
    "release_without_owner_check": under("locks", lie(OURS)),
    "acquire_without_owner_check": under("locks", lie(TAKEN_OVER)),
    "quorum_minus_one": under("locks", swap(Multiplexer, "__init__", after(_one_node_fewer))),
    "quarantined_nodes_count": under("locks", swap(Trust, "votes_from", always(0.0))),
    "restart_guard_ignored": under("locks", restart_guard=False),
    "jumps_without_quarantine": under("leaps", clock_guard=False),
    "validity_from_the_end": under(
        "locks",
        swap(Attempt, "valid_until", counted_from_the_replies),
        swap(Batch, "valid_until", counted_from_the_replies),
        faults=("freeze_process_in_an_attempt",),
    ),
    "renewal_from_the_reply": under("answers", swap(Renewals, "granted", changed(_stamped_late))),
    "an_extension_in_flight_is_forgotten": under("ttls", swap(Grant, "asked", nothing)),
    "extend_takes_any_ttl": under(
        "ttls", swap(_settings, "ttl", does(lambda ttl, **_options: ttl))
    ),
    "each_leave_ends_the_last_that_entered": under(
        "tasks", swap(base.Entered, "leave", does(lambda entered: entered.pop()))
    ),
    "a_node_that_forgot_has_a_say": under(
        "witnesses", swap(Trust, "remembers_from", always(-math.inf))
    ),
    "no_key_is_put_back": under("rolling", swap(Renewals, "lacking", nothing)),
    "no_margin": under(
        "drifting", swap(validity, "DRIFT", always(0.0)), swap(validity, "GRAIN", always(0.0))
    ),
    # With the clock guard on, a clock set back looks like one that stood still, and is survived.
    "wall_clock_for_validity": under("locks", trusts_wall_clocks=True, clock_guard=False),
    "hand_over_unchecked": under(
        "late hand-overs",
        swap(Acquire, "_take_over", changed(lambda _, grant, _least: (grant, -math.inf))),
        # A turn ends long before the lease does, so that is not looked at either.
        swap(
            LocalQueue, "hand_on", changed(lambda _, grant, given, _now: (grant, given, -math.inf))
        ),
    ),
    "a_lease_outlives_its_key": under("locks", swap(validity, "valid_until", later)),
    "a_restarted_node_votes_at_once": under("locks", swap(validity, "quarantine", always(0.0))),
    "a_jump_of_a_clock_goes_unseen": under("leaps", swap(Trust, "sample", always(0.0))),
    "a_stand_still_is_overlooked": under("pauses", swap(StandStill, "jumped", always(0.0))),
    "a_stand_still_shortens_no_lease": under("pauses", swap(Renewals, "shorten", nothing)),
    "a_lease_does_not_end_sooner": under("pauses", swap(Grant, "end_sooner", nothing)),
    "all_leases_have_one_owner": under("locks", swap(OwnerIds, "new", always("owner"))),
    "a_lease_is_held_after_its_end": under("locks", swap(Lease, "held", always(True))),
    "no_lease_is_marked_as_lost": under("locks", swap(Engine, "lose", nothing)),
    "a_renewal_extends_the_key_of_another": under(
        "locks", answers(LOCK, "extend", "GET", 1, "ARGV[4]")
    ),
    "several_names_are_taken_from_their_holders": under(
        "shapes", lua(SEVERAL, "holders", "return {}"), lie(TAKEN_OVER, SEVERAL)
    ),
    "a_reader_is_not_kept": under("shapes", lua(SIDES, "keep_reader", "return")),
    "a_reader_overlooks_the_writer": under("shapes", answers(READ, "acquire", "GET", 4, "false")),
    "a_writer_overlooks_readers": under("shapes", answers(WRITE, "acquire", "ZRANGE", 4, "{}")),
    "an_upgrade_overlooks_other_readers": under(
        "shapes", answers(WRITE, "acquire", "ZRANGE", 4, "ARGV[11] and {ARGV[11]} or nil")
    ),
    "the_release_of_a_reader_releases_all": under(
        "shapes", answers(READ, "release", "ZREM", 1, "real.call('DEL', key)")
    ),
    "the_first_child_that_leaves_ends_the_hold": under(
        "tasks", swap(Grant, "left_by", after(_given_back_by_the_first))
    ),
    "an_older_change_replaces_a_newer_one": under(
        "states", answers(STATES, "accept", "HMGET", 1, "{false, false, false, false}")
    ),
    "a_look_at_a_state_finds_nothing": under(
        "states", answers(STATES, "read", "HMGET", 1, "{false, false, false, false}")
    ),
    "a_promise_does_not_tell_the_value": under(
        "states",
        answers(STATES, "prepare", "HMGET", 1, "real.call(command, key, value, '', '', '')"),
    ),
    "a_silent_memory_is_empty": under("witnesses", swap(register, "surely_empty", always(True))),
    "every_answer_counts": under(
        "witnesses",
        swap(register, "countable", does(lambda _, *, sure, unsure, left: sure + unsure)),
    ),
    # fences
    "a_successor_gets_the_same_fence": under(
        "crowd", swap(Grant, "take_fence", does(lambda grant: grant.fence))
    ),
    "a_reserved_fence_is_given_twice": under(
        "crowd", swap(Grant, "take_fence", does(lambda grant: grant.fences[0]))
    ),
    "a_block_needs_no_counter": under(
        "blocks", swap(Reservation, "on_reply", does(lambda one, *_: one._claim(one._grant.fence)))
    ),
    "a_counter_is_not_stored": under("locks", lua(LOCK, "keep_fence", "return")),
    "a_counter_is_ignored": under("fences", lua(LOCK, "fence_above", "return fence")),
    # Counters only disagree where the clock does not raise them all to one floor.
    "write_back_skipped": under(
        "fences", swap(Ballot, "_agree", largest_claim), swap(Ballot, "_write_back", at_once)
    ),
    "raise_without_owner_check": under("raises", answers(LOCK, "raise", "GET", 1, "ARGV[2]")),
    "reserved_at_one_node": under("blocks", swap(Reservation, "__init__", after(_one_decides))),
    "a_block_from_own_plus_one": under(
        "pairs", swap(Reservation, "_claim", changed(lambda self, _highest: (self._grant.fence,)))
    ),
    # nothing is left, no task waits too long
    "late_requests_run": under(
        "strays", told("if ARGV[1] == 'acquire' or ARGV[1] == 'batch' then ARGV[5] = '0' end")
    ),
    "a_first_acquire_without_a_deadline": under(
        "strays", swap(ServerNode, "_bounded", does(lambda _server, command: command))
    ),
    "a_lost_turn": under(
        "crowd", swap(LocalQueue, "leave", lambda old: lambda *args: old(*args) and None)
    ),
    "claims_behind_are_not_raised": under("fences", swap(Ballot, "take_behind", always(()))),
    "raises_are_not_counted": under("raises", swap(Attempt, "_on_raise_reply", nothing)),
    "claims_never_agree": under("fences", swap(Ballot, "_agree", nothing)),
    "a_batch_is_not_sent": under("crowd", swap(Batch, "send", nothing)),
    "a_cancelled_successor_keeps_all": under("crowd", swap(Acquire, "_leave", nothing)),
    "a_waiter_that_left_has_its_turn": under("crowd", swap(LocalQueue, "give_up", nothing)),
    "a_freed_lease_fills_its_queue": under("crowd", swap(LocalQueue, "free", nothing)),
    "a_release_is_never_certain": under("locks", swap(Release, "certain", always(False))),
    "a_round_of_renewals_never_ends": under("locks", swap(Extension, "_tell", nothing)),
    # who goes first
    "no_ticket_is_the_first": under("order", lua(LOCK, "first", "return nil")),
    "a_later_waiter_gets_a_smaller_number": under("order", lua(LOCK, "join", EARLIER_NUMBER)),
    "a_newcomer_overlooks_the_queue": under("order", answers(LOCK, "acquire", "PTTL", 3, "-2")),
    "each_call_goes_ahead_of_all_waiters": under("order", swap(Ask, "__init__", after(Ask.barge))),
    # each reply counts, and for what it is
    "refusals_are_not_counted": under("locks", swap(Ballot, "refuse", nothing)),
    "abstentions_are_not_counted": under("locks", swap(Ballot, "abstain", nothing)),
    "accepted_fences_are_not_counted": under("queues", swap(Ballot, "raised", nothing)),
    "any_vote_is_won": under("locks", swap(Attempt, "conclude", always(True))),
    "no_fence_is_written_back": under("queues", swap(Attempt, "_write_back", nothing)),
    "different_replies_decide_no_batch": under("keepers", swap(Batch, "_split_up", nothing)),
    "a_split_batch_counts_no_reply": under("locks", swap(Batch, "_count", nothing)),
    "a_split_batch_forgets_its_grants": under("keepers", swap(Batch, "claims", always({}))),
    "a_rejected_request_has_no_reply": under("locks", swap(Link, "_rejected", nothing)),
    "overdue_requests_are_waited_for": under("late", swap(Link, "_check_time", nothing)),
    "a_tick_sends_nothing": under("locks", swap(Multiplexer, "flush_soon", nothing)),
    # renewal
    "an_extension_counts_for_longer": under(
        "locks", swap(Grant, "extended", changed(lambda _, until: (until + 0.5,)))
    ),
    "an_extension_does_not_count": under("rolling", swap(Grant, "extended", nothing)),
    "extensions_are_not_counted": under("rolling", swap(Extension, "_count", nothing)),
    "a_renewal_comes_too_late": under(
        "rolling", swap(validity, "renew_at", does(lambda sent, ttl: sent + ttl))
    ),
    "a_lease_is_never_renewed": under("rolling", swap(Renewals, "extend", nothing)),
    "a_lease_is_never_checked": under("locks", swap(Grant, "check_at", nothing)),
    # clocks and guards
    "no_guard_takes_a_vote": under("locks", swap(Trust, "quarantine", always(0.0))),
    "one_node_alone_knows_of_a_jump": under("pauses", swap(Multiplexer, "_jumped", nothing)),
    "an_idle_node_is_not_asked_for_its_clock": under(
        "pauses", swap(ServerNode, "check_clock", nothing)
    ),
    "clocks_in_replies_are_not_read": under("rolling", swap(ServerNode, "on_clock", nothing)),
    "clocks_are_not_compared": under("rolling", swap(Multiplexer, "read_clocks", nothing)),
    "requests_have_no_bound": under("rolling", swap(Multiplexer, "not_after", always(0))),
    "fences_have_no_floor": under(
        "rolling",
        swap(Multiplexer, "fence_floor", always(0)),
        swap(Multiplexer, "read_clocks", nothing),
    ),
    "a_fence_of_the_block_is_given_again": under(
        "crowd", swap(Grant, "take_fence", does(lambda grant: [grant.fence, *grant.fences][-1]))
    ),
    "a_flush_goes_unseen": under("locks", swap(Trust, "forgot", always(0.0))),
    # calls that end early
    "a_loss_interrupts_no_body": under("locks", swap(Interruption, "interrupt", nothing)),
    "a_call_that_gave_up_waits_on": under("calm", swap(Seek, "leave", nothing)),
    "a_call_that_gave_up_has_its_turn": under("locks", swap(Acquire, "_give_up", nothing)),
    "a_cancelled_attempt_keeps_the_name": under("brief", swap(Attempt, "abandon", nothing)),
    "a_call_cleans_nothing_up": under("locks", swap(Context, "clean_up", nothing)),
    "nothing_is_done_in_the_managers_loop": under("crowd", swap(Context, "soon", nothing)),
    # scripts
    "each_fence_is_the_first": under("locks", lua(LOCK, "next_fence", "return 1")),
    "a_counter_is_soon_forgotten": under("queues", lua(LOCK, "time_to_keep", "return 1")),
    "the_fence_of_a_side_is_not_stored": under("shapes", lua(SIDES, "keep_fence", "return")),
    "each_fence_of_a_side_is_the_first": under("shapes", lua(SIDES, "next_fence", "return 1")),
    "the_fences_of_several_are_not_stored": under("shapes", lua(SEVERAL, "keep_fence", "return")),
    "a_side_that_gave_up_waits_on": under("calm", lua(SIDES, "leave", "return")),
    "no_side_is_the_first": under("calm", lua(SIDES, "first", "return nil")),
}


@contextlib.contextmanager
def sabotaged(name: str) -> Iterator[dict[str, Any]]:
    """Break the library in one way; return the options of a run that belong to it."""
    plan, breaks, options = SABOTAGES[name]
    with pytest.MonkeyPatch.context() as patch:
        for break_it in breaks:
            break_it(patch)
        forget_specs()  # what is kept has the good script, or afterwards the bad one
        try:
            yield {"plan": plan, **options}
        finally:
            forget_specs()
            gc.collect()  # managers that a broken library could not close
