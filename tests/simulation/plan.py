"""What a kind of schedule is: which operations and faults go together."""

from dataclasses import dataclass, field

from tests.simulation.faults import ALONE, FAULTS
from tests.simulation.world import Nature

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
