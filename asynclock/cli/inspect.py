"""`asynclock inspect`: shows held locks and shared state, node by node."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .._engine.inspection import Inspection, NodeView, Waiter
from .._inspect.monitor import lacking_rights
from .._inspect.survey import SharedState, Survey, survey
from .._inspect.takeback import digits
from .._inspect.views import Agreement, as_json, origin, queue_as_json, queued, title
from .._primitives.semaphore import WINDOW
from ..errors import ConfigurationError
from ..manager import LockManager, engine_of
from ._output import (
    SPARE,
    Status,
    ago,
    guarded,
    log_to_nobody,
    print_json,
    print_table,
    print_text,
    raise_on_ctrl_c,
    say,
    seconds,
)
from ._settings import COMMON, Settings, load, read_options

LONGEST_VALUE = 500
"""Maximum number of characters that are shown of what a holder publishes."""
SHOWN = 20
"""Maximum number of waiters in a table: the holder above it must stay on the screen."""
FLAGS = {"--all": "all", "-a": "all", "--json": "json"}


@dataclass
class InspectArguments:
    """The arguments of `asynclock inspect`."""

    name: str | None = None
    all: bool = False
    json: bool = False
    node: list[str] | None = None
    config: Path | None = None
    prefix: str | None = None
    node_timeout: float | None = None


def parse(words: Sequence[str]) -> InspectArguments | None:
    """Return the arguments, or None if typer must show help or explain a mistake."""
    found = read_options(words, COMMON, FLAGS)
    if found is None or len(found[1]) > 1:
        return None
    options, names = found
    return InspectArguments(names[0] if names else None, **options)


def start(wanted: InspectArguments) -> int:
    """Do the work without typer, and return the exit status of this program."""
    raise_on_ctrl_c()
    # A list of thousands of locks makes many objects and drops none before this process ends:
    # looking for garbage among them would take a sixth of the time.
    gc.disable()
    return guarded(lambda: show(wanted))


def show(wanted: InspectArguments) -> int:
    """Print what was asked for, and return the exit status."""
    name, json = wanted.name, wanted.json
    if (name is None) == (not wanted.all):
        raise ConfigurationError("name a lock, or give --all")
    settings = load(wanted.node, wanted.config, wanted.prefix, wanted.node_timeout)
    log_to_nobody()
    found = asyncio.run(find(settings, name))
    if name is None:
        _show_all(found, json, len(settings.nodes))
    else:
        _show_one(found, json, len(settings.nodes))
    say_causes(found.errors, settings.prefix)
    for address, cause in found.without_vote.items():
        say(f"{address}: answers, but has no vote: {cause}")
    return Status.UNREACHABLE if found.shortfall(len(settings.nodes)) else Status.OK


def say_causes(errors: Mapping[str, str], prefix: str) -> None:
    """Print why nodes could not be asked, and what to do about it."""
    for address, error in errors.items():
        say(f"{address}: {error}")
    for sentence in lacking_rights(errors, prefix):
        say(sentence)


async def find(settings: Settings, name: str | None) -> Survey:
    """Find everything, or the lock `name` and (if that is free) the parts of the name."""
    async with settings.look("inspect") as locks:
        if name is None:
            return with_missing_votes(await survey(engine_of(locks)), locks)
        lock = await locks.inspect(name)
        errors = {view.node: view.error for view in lock.nodes if view.error is not None}
        if all(view.owner is None for view in lock.nodes):
            found = await survey(engine_of(locks), name)
            if found.held or found.waiting or found.states:
                free = [] if found.states and not found.waiting else [lock]
                return with_missing_votes(replace(found, held=found.held or free), locks)
        waiting = {name: lock.waiting} if lock.waiting else {}
        return with_missing_votes(Survey([lock], errors, waiting), locks)


def with_missing_votes(found: Survey, locks: LockManager) -> Survey:
    """Add the nodes that have answered but have no vote."""
    without_vote = {
        node.node: node.cause
        for node in locks.nodes()
        if node.state in ("quarantined", "rejected") and node.node not in found.errors
    }
    return replace(found, without_vote=without_vote)


def _show_all(found: Survey, json: bool, nodes: int) -> None:
    if json:
        shown = [as_json(one) for one in found.held]
        states = [one.as_json() for one in found.states]
        print_json(
            {
                "locks": shown,
                "states": states,
                "waiting": {name: queue_as_json(one) for name, one in found.waiting.items()},
                "errors": found.errors,
                "without_vote": found.without_vote,
            }
        )
        return
    print_table(
        ("name", "holder", "held for", "remaining", "fence", "nodes", "message", "note"),
        [_row(one) for one in found.held] + [_state_row(one) for one in found.states],
        SPARE,
    )
    shared = f", {len(found.states)} shared" if found.states else ""
    held = sum(not one.rests for one in found.held)
    print_text(f"{held} held{shared}{found.shortfall(nodes)}")


def _row(found: Inspection) -> tuple[str, ...]:
    *row, note = lease_cells(found, Agreement.of(found), found.remaining)
    return (*row, ", ".join(filter(None, [note, queued(found.waiting)])))


def lease_cells(
    found: Inspection, agreement: Agreement, left: float | None, seen: float = 0.0
) -> tuple[str, ...]:
    """Return a lease as text: name, holder, held for, remaining, fence, nodes, message, note.

    `left` is what remains of it in seconds, and `seen` for how long it has been seen.
    """
    holder = (agreement.leading.holder if agreement.leading else None) or ""
    times = ago(found.since) or (f"over {seconds(seen)}" if seen else ""), seconds(left)
    said = (found.message or "")[:LONGEST_VALUE]
    fence = str(found.fence or "")
    return title(found), holder, *times, fence, agreement.support, said, agreement.note


def _show_one(found: Survey, json: bool, nodes: int) -> None:
    leases = found.held
    name = leases[0].name if leases else found.states[0].name
    waiting = found.waiting.get(name, ())
    if json:
        shown = [as_json(one) for one in leases]
        plain = bool(leases) and leases[0].kind == "lock"
        whole = shown[0] if plain else {"name": name, "parts": shown}
        states = [one.as_json() for one in found.states]
        votes = {"without_vote": found.without_vote}
        print_json({**whole, "states": states, "waiting": queue_as_json(waiting), **votes})
        return
    permits = [one for one in leases if one.kind == "semaphore" and one.part.isdigit()]
    if permits:
        known = max((one.slots for one in waiting), default=0)
        of = f" of {known}{' or more' * (known >= WINDOW)}" if known >= len(permits) else ""
        print_text(f"{name} [semaphore]: {len(permits)}{of} permits taken")
    for lease in leases:
        _show_lease(lease, found.without_vote)
    for state in found.states:
        _show_state(state)
    short = found.shortfall(nodes)
    if waiting:
        _show_queue(waiting, short)
    elif short and not found.states:
        print_text(f"nobody is known to wait{short}")


def _show_queue(waiting: Sequence[Waiter], short: str) -> None:
    print_text(f"{queued(waiting)}{short or '; the first goes next'}")
    rows = [
        (str(place), one.label or "", ago(one.since), "woken" if one.woken else "")
        for place, one in enumerate(waiting[:SHOWN], 1)
    ]
    print_table(("place", "waiter", "waiting for", "note"), rows)
    if len(waiting) > SHOWN:
        print(f"and {len(waiting) - SHOWN} more, which --json lists")


def _show_lease(found: Inspection, without_vote: Mapping[str, str]) -> None:
    print_text(f"{title(found)}: {_verdict(found, without_vote)}")
    if found.message is not None:
        print_text(f"publishes {found.message[:LONGEST_VALUE]!r}")
    rows = [
        (
            view.node,
            digits(view.owner or ""),
            view.holder or "",
            seconds(view.remaining) if view.owner is not None else "",
            str(view.fence or ""),
            view.error or ", ".join(_about(view, without_vote)),
        )
        for view in found.nodes
    ]
    print_table(("node", "owner", "holder", "remaining", "fence", "note"), rows)


def _state_row(found: SharedState) -> tuple[str, ...]:
    support = f"{found.support}/{len(found.nodes)}"
    left = seconds(found.last.remaining)
    return f"{found.name} [{found.kind}]", "", "", left, "", support, "", found.summary


def _show_state(found: SharedState) -> None:
    print_text(f"{found.name} [{found.kind}]: {found.summary}")
    rows = [
        (
            view.node,
            "" if view.value is None else view.value,
            seconds(view.remaining),
            view.error or ("" if view.number == found.last.number else "behind"),
        )
        for view in found.nodes
    ]
    print_table(("node", "value", "remaining", "note"), rows)


def _about(view: NodeView, without_vote: Mapping[str, str]) -> Iterator[str]:
    if view.owner is None:
        yield "free"
    if view.node in without_vote:
        yield f"no vote: {without_vote[view.node]}"


def _verdict(found: Inspection, without_vote: Mapping[str, str]) -> str:
    agreement = Agreement.of(found)
    by = found.holder or "a holder without a label"
    if found.rests:
        left = "" if found.remaining is None else f", {seconds(found.remaining)} left"
        return f"rests{left}; last held by {by}"
    if found.owner is not None:
        where = origin(found.holder)
        if where["pid"] is not None:
            task = f", {where['task']}" if where["task"] else ""
            by = f"process {where['pid']} on {where['host']}{task}"
        held = f"held {ago(found.since)}".rstrip()
        parts = [f"{held} by {by}", f"fence {found.fence}"]
        if found.remaining is not None:
            parts.append(f"{seconds(found.remaining)} left without renewal")
        return "; ".join([*parts, *filter(None, [agreement.note])])
    if agreement.undecided:
        return agreement.note
    if any(view.owner is not None for view in found.nodes):
        return "nobody has a quorum: " + agreement.note
    if len(found.nodes) - len(without_vote) < found.quorum:
        return (
            f"no owner is known, but {len(without_vote)} of {len(found.nodes)} nodes have no vote: "
            "they may have forgotten the owner"
        )
    return "free"
