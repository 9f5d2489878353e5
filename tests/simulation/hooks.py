"""Sabotages that replace one function, of Python or of a script, by one that does something else.

They name the function and say nothing of its text, so its code can change. Each is listed with the
plan that notices it soonest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from asynclock import _connect
from asynclock._engine.attempt import Attempt
from asynclock._engine.batch import Batch
from asynclock._engine.context import Context
from asynclock._engine.engine import Engine
from asynclock._engine.fences import Reservation
from asynclock._engine.grant import Grant
from asynclock._engine.lease_state import LeaseState
from asynclock._engine.local_acquire import LocalAcquire
from asynclock._engine.local_queue import LocalQueue
from asynclock._engine.release import Release
from asynclock._engine.renewal import Renewals
from asynclock._engine.round import Round
from asynclock._nodes.script import Script
from asynclock._primitives import fair, lock, readwrite
from asynclock._primitives import round as votes
from asynclock._rules import trust, validity
from asynclock._rules.quorum import Ballot
from asynclock._rules.standstill import StandStill
from asynclock._rules.trust import Trust

LOCK = ((lock, "SCRIPT"), (fair, "SCRIPT"))
SIDES = ((readwrite, "READ"), (readwrite, "WRITE"))


class Hook(NamedTuple):
    """A function and what takes its place, made from it."""

    plan: str
    owner: Any
    function: str
    replace: Callable[[Any], Any]

    def break_it(self, patch: pytest.MonkeyPatch) -> None:
        new = self.replace(vars(self.owner)[self.function])
        patch.setattr(self.owner, self.function, new)


class LuaHook(NamedTuple):
    """A function of scripts, and another body for it."""

    plan: str
    scripts: tuple[tuple[ModuleType, str], ...]
    function: str
    body: str

    def break_it(self, patch: pytest.MonkeyPatch) -> None:
        pattern = rf"^(local function {self.function}\([^)]*\)).*?^end$"
        found = re.compile(pattern, re.MULTILINE | re.DOTALL)
        bodies = [getattr(*place).source for place in self.scripts]
        assert any(found.search(source) for source in bodies), f"no script has {self.function}"
        scripts = [Script(found.sub(rf"\1 {self.body} end", source, 1)) for source in bodies]
        for (module, name), script in zip(self.scripts, scripts, strict=True):
            patch.setattr(module, name, script)
        # Each connection loads them at once, as it loads the good ones.
        patch.setattr(_connect, "SCRIPTS", (*_connect.SCRIPTS, *scripts))


def nothing(_: Any) -> Any:
    """Make a function that does nothing."""
    return lambda *_args, **_options: None


def always(value: object) -> Callable[[Any], Any]:
    """Make a function, or a property, with one result."""

    def replace(old: Any) -> Any:
        if isinstance(old, property):
            return property(lambda _: value)
        return lambda *_args, **_options: value

    return replace


def later(old: Any) -> Any:
    """Make a function whose moment is half a second later."""
    return lambda *args: old(*args) + 0.5


def same_fence(_: Any) -> Any:
    """Make a hand-over that takes no new fence."""
    return lambda grant: grant.fence


def first_fence(_: Any) -> Any:
    """Make a hand-over that leaves its fence in the block."""
    return lambda grant: grant.fences[0]


def unasked(_: Any) -> Any:
    """Make any reply to a reservation confirm it."""
    return lambda reservation, _index, _reply: reservation._claim(reservation._grant.fence)


def counted(_: Any) -> Any:
    """Count every answer."""
    return lambda _size, *, sure, unsure, left: sure + unsure


HOOKS: dict[str, Hook | LuaHook] = {
    # one holder at a time
    "a_lease_outlives_its_key": Hook("locks", validity, "valid_until", later),
    "a_restarted_node_votes_at_once": Hook("locks", trust, "quarantine", always(0.0)),
    "a_jump_of_a_clock_goes_unseen": Hook("leaps", Trust, "sample", always(0.0)),
    "a_stand_still_is_overlooked": Hook("pauses", StandStill, "jumped", always(0.0)),
    "a_stand_still_shortens_no_lease": Hook("pauses", Renewals, "shorten", nothing),
    "a_lease_does_not_end_sooner": Hook("pauses", Grant, "end_sooner", nothing),
    "all_leases_have_one_owner": Hook("locks", Context, "new_owner", always("owner")),
    "a_shorter_ttl_does_not_count": Hook("ttls", Grant, "shortened", nothing),
    "a_lease_is_held_after_its_end": Hook("locks", LeaseState, "held", always(True)),
    "no_lease_is_marked_as_lost": Hook("locks", Engine, "mark_lost", nothing),
    "a_lost_key_is_put_back_nowhere": Hook("rolling", Renewals, "missing", nothing),
    "a_reader_is_not_kept": LuaHook("shapes", SIDES, "keep_reader", "return"),
    "a_silent_memory_is_empty": Hook("witnesses", votes, "surely_empty", always(True)),
    "every_answer_counts": Hook("witnesses", votes, "countable", counted),
    # fences
    "a_successor_gets_the_same_fence": Hook("crowd", Grant, "take_fence", same_fence),
    "a_reserved_fence_is_given_twice": Hook("crowd", Grant, "take_fence", first_fence),
    "a_block_needs_no_counter": Hook("blocks", Reservation, "on_reply", unasked),
    "a_counter_is_not_stored": LuaHook("locks", LOCK, "keep_fence", "return"),
    "a_counter_is_ignored": LuaHook("fences", LOCK, "fence_above", "return fence"),
    # nothing is left, no task waits too long
    "claims_behind_are_not_raised": Hook("fences", Ballot, "take_behind", always(())),
    "raises_are_not_counted": Hook("raises", Attempt, "on_raise_reply", nothing),
    "claims_never_agree": Hook("fences", Ballot, "_agree", nothing),
    "a_batch_is_not_sent": Hook("crowd", Batch, "send", nothing),
    "a_cancelled_successor_keeps_all": Hook("crowd", LocalAcquire, "_give_back", nothing),
    "a_waiter_that_left_has_its_turn": Hook("crowd", LocalQueue, "give_up", nothing),
    "a_freed_lease_fills_its_queue": Hook("crowd", LocalQueue, "free", nothing),
    "a_release_is_never_certain": Hook("locks", Release, "_certain", always(False)),
    "a_round_of_renewals_never_ends": Hook("locks", Round, "_tell", nothing),
    # who goes first
    "no_ticket_is_the_first": LuaHook("order", LOCK, "first", "return nil"),
}
