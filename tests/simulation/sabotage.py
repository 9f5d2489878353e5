"""Ways to break the library that a suite which proves anything must notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asynclock import _clock
from asynclock._engine.attempt import Attempt
from asynclock._nodes.multiplexer import Multiplexer
from asynclock._nodes.script import Script
from asynclock._primitives import lock
from asynclock._rules import validity
from asynclock._rules.quorum import Ballot

Break = Callable[[pytest.MonkeyPatch], None]
SABOTAGES: dict[str, Break] = {}


def _sabotage(function: Break) -> Break:
    SABOTAGES[function.__name__] = function
    return function


@contextlib.contextmanager
def sabotaged(name: str) -> Iterator[dict[str, Any]]:
    """Break the library in one way. → options of a run that belong to it."""
    with pytest.MonkeyPatch.context() as patch:
        SABOTAGES[name](patch)
        lock.recipe.cache_clear()  # what is kept has the good script, or afterwards the bad one
        try:
            yield OPTIONS.get(name, {})
        finally:
            lock.recipe.cache_clear()


OPTIONS: dict[str, dict[str, Any]] = {
    "restart_guard_ignored": {"restart_guard": False},
    # Counters only disagree where the clock does not raise them all to one floor.
    "write_back_skipped": {"floors": False, "processes": 3, "nodes": 3, "faults": ("ring",)},
    "validity_from_the_end": {"faults": ("freeze_process_in_an_attempt",)},
    # With the clock guard on, a clock set back looks like one that stood still, and is survived.
    "wall_clock_for_validity": {"trusts_wall_clocks": True, "clock_guard": False},
}


@_sabotage
def release_without_owner_check(patch: pytest.MonkeyPatch) -> None:
    _edit(patch, "if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, now} end", "")


@_sabotage
def acquire_without_owner_check(patch: pytest.MonkeyPatch) -> None:
    _edit(patch, "if holder and holder ~= owner then", "if false then")


@_sabotage
def quorum_minus_one(patch: pytest.MonkeyPatch) -> None:
    init = Multiplexer.__init__

    def fewer(self: Multiplexer, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.quorum = max(1, self.quorum - 1)

    patch.setattr(Multiplexer, "__init__", fewer)


@_sabotage
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


@_sabotage
def restart_guard_ignored(_patch: pytest.MonkeyPatch) -> None:
    """Nothing to patch: it is an option, see above."""


@_sabotage
def validity_from_the_end(patch: pytest.MonkeyPatch) -> None:
    """A lease counted from the replies instead of from before the request."""

    def late(attempt: Attempt) -> float:
        return validity.valid_until(_clock.now(), attempt._ttl)

    patch.setattr(Attempt, "valid_until", property(late, lambda _self, _value: None))


@_sabotage
def wall_clock_for_validity(_patch: pytest.MonkeyPatch) -> None:
    """`held` asks a clock that may be set back: an option too."""


def _edit(patch: pytest.MonkeyPatch, old: str, new: str) -> None:
    source = lock.SCRIPT.source
    assert source.count(old) == 1
    patch.setattr(lock, "SCRIPT", Script(source.replace(old, new)))
