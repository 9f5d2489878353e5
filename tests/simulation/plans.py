"""All kinds of schedules, and how many of each there are.

A seed has a plan, and the seed decides everything else. Each plan is as long as it needs to be and
has only those faults under which its promises are made. The shares let renewals, reservations,
hand-overs, jumps and delays happen as often as acquires, so that the mix notices if their rules are
broken: `test_a_sabotage_is_caught_by_the_ordinary_mix`.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from tests.simulation.faults import ALONE, FAULTS
from tests.simulation.world import TTL, Nature

EVERYTHING = tuple(kind for kind in FAULTS if kind not in ALONE)
STEPS = "step_clock_again_and_again"
MINORITY = (
    *("freeze_node", "forget_one_node", "cut_connections", "partition", "ring", "slow"),
    *("lose_replies", "freeze_process", "flush_scripts"),
)
"""Faults of fewer than half of the nodes."""
BRIEF_LEASES = {"ttl": 0.8, "max_ttl": 0.8, "node_timeout": 0.2}


@dataclass(frozen=True)
class Plan:
    """A kind of schedule."""

    name: str
    share: int
    """How many of all schedules are of this kind, in proportion."""
    operations: dict[str, float]
    """How often each, in proportion."""
    faults: tuple[str, ...] = EVERYTHING
    names: tuple[str, ...] = ("a", "b")
    horizon: float = 3.0
    """Virtual seconds of work and faults."""
    tasks: int = 2
    """How many in each process work."""
    eagerness: float = 3.0
    """How many operations a second a task begins, while nothing holds it up."""
    pace: tuple[float, float] = (0.7, 5.0)
    """How many faults a second there are, at least and at most."""
    cancels: float = 0.15
    """How many operations are cancelled."""
    timely: bool = True
    """Whether one holder at a time is promised."""
    rising: bool = True
    """Whether fences must rise, or only differ."""
    nodes: tuple[int, ...] = (1, 3, 3, 5, 3)
    processes: tuple[int, ...] = (2, 3)
    floors: bool | None = None
    """Whether fences may be seeded by clocks; None: the seed decides."""
    strict: tuple[str, ...] = ()
    """Promises that are judged besides."""
    watch: float = 0.1
    """Seconds between two looks at what is held and kept."""
    nature: Nature = field(default_factory=lambda: Nature(1, 2))


BARE: dict[str, Any] = {
    "names": ("a",),
    "nodes": (3,),
    **dict.fromkeys(("floors", "timely", "rising"), False),
}
"""Three nodes and one name, of which only different fences are promised."""
AIMED = (
    Plan(
        "handovers",
        6,
        {"strictly": 4.0, "crowded": 1.0},
        faults=("freeze_process_in_a_hand_over", STEPS),
        names=("a",),
        tasks=6,
        eagerness=60.0,
        horizon=1.0,
        pace=(2.0, 4.0),
        nodes=(3, 1, 3, 5),
        nature=Nature(1, 2, settings={"turn": 0.5}),
    ),
    Plan(
        "waits",
        2,
        {"try_mutex": 4.0, "glancing": 4.0},
        faults=("freeze_process_at_mute_nodes",),
        horizon=4.0,
        pace=(1.0, 3.0),
    ),
    Plan(
        "strays",
        3,
        {"lingering": 4.0, "glancing": 1.0},
        faults=("strand_an_acquire",),
        names=("a", "b", "c"),
        horizon=1.0,
        pace=(2.0, 5.0),
        nodes=(3, 3, 5),
        nature=Nature(1, 2, late=6.0),
    ),
    Plan(
        "stretches",
        3,
        {"stretching": 4.0, "glancing": 1.0},
        faults=("be_cut_off_after_an_extension",),
        horizon=2.0,
        pace=(2.0, 4.0),
    ),
    Plan(
        "answers",
        3,
        {"renewing": 4.0, "glancing": 1.0},
        faults=("be_cut_off_after_an_extension",),
        pace=(1.0, 3.0),
        nature=Nature(1, 2, settings=BRIEF_LEASES),
    ),
    Plan(
        "leaps",
        3,
        {"renewing": 1.0, "glancing": 4.0},
        faults=("jump_under_a_holder", STEPS),
        names=("a",),
        eagerness=8.0,
        pace=(2.0, 4.0),
        nodes=(3, 5),
        processes=(3,),
    ),
    Plan(
        "witnesses",
        1,
        {"counting_down": 2.0, "looking_at_the_latch": 2.0},
        faults=("lose_a_witness",),
        floors=True,
        horizon=3.5,
        eagerness=4.0,
        pace=(2.0, 4.0),
        nodes=(3,),
        nature=Nature(1, 2, late=0.05, settings=BRIEF_LEASES),
    ),
    Plan(
        "blocks",
        2,
        {"crowded": 3.0, "glancing": 1.0},
        faults=("raise_at_one_node_only",),
        tasks=4,
        eagerness=15.0,
        horizon=2.0,
        pace=(2.0, 5.0),
        processes=(3,),
        nature=Nature(1, 2, settings={**BRIEF_LEASES, "clock_guard": False}),
        **BARE,
    ),
    Plan(
        "pairs",
        5,
        {"in_pairs": 1.0},
        faults=("pass_a_node_on",),
        eagerness=12.0,
        horizon=1.0,
        pace=(5.0, 8.0),
        processes=(2,),
        nature=Nature(1, 2, settings={"clock_guard": False}),
        **BARE,
    ),
    Plan(
        "raises",
        3,
        {"glancing": 1.0},
        faults=("hold_up_a_write_back",),
        tasks=1,
        eagerness=10.0,
        horizon=2.0,
        pace=(3.0, 5.0),
        processes=(3,),
        nature=Nature(1, 2, settings={"clock_guard": False}),
        **BARE,
    ),
    Plan(
        "order",
        2,
        {"fairly": 1.0},
        faults=MINORITY,
        floors=True,  # numbers begin at the nodes' clocks
        eagerness=5.0,
        horizon=1.5,
        pace=(0.7, 3.0),
        nodes=(1, 3, 3, 5),
        processes=(3, 4),
    ),
    Plan(
        "late hand-overs",
        5,
        {"mutex": 1.0, "crowded": 4.0},
        faults=("freeze_after_a_body",),
        names=("a",),
        tasks=5,
        eagerness=30.0,
        nodes=(1, 3),
    ),
)
"""Plans that often do what one rule of the protocol guards against."""
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
