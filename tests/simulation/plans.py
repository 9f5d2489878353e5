"""All kinds of schedules, and how many of each there are.

A seed has a plan, and the seed decides everything else. Each plan is as long as it needs to be and
has only those faults under which its promises are made. The shares let renewals, reservations,
hand-overs, jumps and delays happen as often as acquires, so that the mix notices if their rules are
broken: `test_a_sabotage_is_caught_by_the_ordinary_mix`.
"""

from dataclasses import fields, replace
from typing import Any

from tests.simulation.aimed import AIMED
from tests.simulation.plan import BRIEF_LEASES, EVERYTHING, MINORITY, STEPS, Plan
from tests.simulation.world import TTL, Nature

MUTEX = {"mutex": 8.0, "try_mutex": 2.0}
NO_JUMPS = (
    *("freeze_node", "partition", "ring", "slow", "lose_replies"),
    *("freeze_process", "freeze_process_in_an_attempt"),
)
FENCES_ONLY = (
    *("jump_any_clock", "freeze_node", "cut_connections", "partition", "ring", "slow"),
    *("lose_replies", "freeze_process", "freeze_process_in_an_attempt", "kill_durable_node"),
    "flush_scripts",
)
PLANS = (
    Plan(
        "locks",
        6,
        {"mutex": 6.0, "try_mutex": 2.0, "renewing": 3.0, "extending": 2.0},
        faults=(*EVERYTHING, STEPS),
    ),
    Plan("ttls", 5, {"mutex": 3.0, "try_mutex": 1.0, "renewing": 4.0, "extending": 3.0}),
    Plan(
        "crowd",
        3,
        {"crowded": 8.0, "mutex": 1.0, "thrown_away": 0.5},
        names=("a",),
        tasks=5,
        eagerness=20.0,
        cancels=0.05,
        horizon=1.5,
    ),
    Plan(
        "queues",
        17,
        {"strictly": 8.0, "crowded": 1.0},
        faults=(STEPS, "ring", "freeze_node", "slow", "freeze_process_in_a_hand_over"),
        names=("a",),
        tasks=6,
        eagerness=60.0,
        cancels=0.05,
        horizon=1.5,
        pace=(2.0, 6.0),
        nodes=(3, 5),
        nature=Nature(1, 2, settings={"ttl": 0.3 * TTL, "turn": 0.5}),
    ),
    Plan(
        "keepers",
        14,
        {"lasting": 4.0, "glancing": 2.0},
        faults=(*NO_JUMPS, STEPS),
        nodes=(3, 1, 3, 5),
    ),
    Plan(
        "tasks",
        3,
        {
            "mutex": 2.0,
            "left_elsewhere": 2.0,
            "dispatched": 2.0,
            "thrown_away": 2.0,
            "shared_object": 2.0,
            "inherited": 4.0,
        },
        eagerness=6.0,
        horizon=2.0,
    ),
    Plan(
        "shapes",
        3,
        {
            "permit": 4.0,
            "reading": 4.0,
            "writing": 2.0,
            "changing_sides": 3.0,
            "several": 3.0,
            "mutex": 1.0,
            "upgrading": 0.3,
        },
        strict=("queues",),
        horizon=2.0,
    ),
    Plan("brief", 1, {"short_lived": 4.0, "mutex": 2.0}, horizon=1.0),
    Plan(
        "calm",
        2,
        {"reading": 4.0, "writing": 2.0, "short_lived": 0.2, "mutex": 1.0},
        faults=(),
        names=("a",),
        strict=("phases",),
        horizon=2.0,
        eagerness=6.0,
        nature=Nature(1, 2, late=0.1),
    ),
    Plan(
        "states",
        3,
        {
            "counting_down": 3.0,
            "looking_at_the_latch": 2.0,
            "changing_the_event": 2.0,
            "looking_at_the_event": 3.0,
        },
        faults=MINORITY,
        floors=True,  # a change is numbered by the nodes' clocks
        horizon=4.0,
        eagerness=5.0,
        pace=(0.7, 3.0),
        nodes=(3, 3, 5),
    ),
    Plan(
        "fences",
        3,
        {"crowded": 4.0, "mutex": 4.0, "renewing": 2.0},
        faults=FENCES_ONLY,
        names=("a",),
        tasks=3,
        eagerness=6.0,
        floors=False,
        timely=False,
        rising=False,
        nodes=(3, 3, 5),
        processes=(3, 4),
        nature=Nature(1, 2, late=2.0, settings={"clock_guard": False}),
    ),
    Plan(
        "jumps",
        12,
        {"renewing": 2.0, "lasting": 4.0, "mutex": 2.0, "glancing": 2.0},
        faults=("jump_clock", STEPS, "ring", "freeze_node", "partition", "kill_durable_node"),
        names=("a",),
        eagerness=6.0,
        pace=(2.0, 6.0),
        nodes=(3, 5),
    ),
    Plan(
        "late",
        2,
        MUTEX,
        faults=("freeze_node", "cut_connections", "partition", "kill_durable_node"),
        horizon=2.0,
        nature=Nature(1, 2, late=6.0),
    ),
    Plan(
        "drifting",
        6,
        {"renewing": 4.0, "mutex": 4.0, "try_mutex": 2.0},
        faults=NO_JUMPS,
        names=("a",),
        watch=0.01,  # a lease that counts for too long does so for some milliseconds
        nature=Nature(1, 2, drift=0.0049, settings={"clock_guard": False}),
    ),
    Plan(
        "pauses",
        2,
        {"renewing": 4.0, "mutex": 2.0, "extending": 1.0},
        faults=("stand_still",),
        names=("a",),
        horizon=4.0,
        pace=(1.0, 3.0),
        nodes=(1, 3, 5),
        nature=Nature(1, 2, late=0.04),  # or it may take longer to notice (records.NOTICED)
    ),
    Plan(
        "flapping",
        1,
        {"mutex": 8.0, "try_mutex": 2.0},
        faults=("flap_node",),
        names=("a", "b", "c", "d"),
        floors=True,
        tasks=4,
        eagerness=20.0,
        pace=(2.0, 3.0),
        nodes=(3, 5),
    ),
    Plan(
        "rolling",
        2,
        {"mutex": 1.0, "long": 2.0},
        faults=("restart_in_turn",),
        floors=True,
        tasks=1,
        eagerness=1.0,
        horizon=8.0,
        pace=(4.0, 6.0),
        cancels=0.0,
        nodes=(3, 5),
        nature=Nature(1, 2, late=0.05, settings=BRIEF_LEASES),
    ),
    *AIMED,
)
TURNS = tuple(plan for plan in PLANS for _ in range(plan.share))
"""Whose turn it is: as many seeds in a row as there are turns play each plan as its share says."""


def plan_of(seed: int, name: str = "", **changes: Any) -> Plan:
    """The plan of a seed (or the one of that name), made whole by the seed and `changes`."""
    named = [plan for plan in PLANS if plan.name == name]
    # Spread, so that a few seeds in a row are of many kinds.
    plan = named[0] if named else TURNS[seed * 7 % len(TURNS)]
    turn = seed if named else seed // len(TURNS)
    ours = {one.name for one in fields(Plan)} - {"nodes", "processes", "floors"}
    plan = replace(plan, **{key: changes.pop(key) for key in list(changes) if key in ours})
    nature = {
        "nodes": plan.nodes[turn % len(plan.nodes)],
        "processes": plan.processes[turn // 5 % len(plan.processes)],
        "floors": turn // 2 % 4 > 0 if plan.floors is None else plan.floors,
    }
    of_world = {one.name for one in fields(Nature)} - {"settings"}
    nature |= {key: changes.pop(key) for key in list(changes) if key in of_world}
    settings = {**plan.nature.settings, **changes}
    return replace(plan, nature=replace(plan.nature, settings=settings, **nature))
