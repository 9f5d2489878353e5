"""The engine under random schedules in virtual time: nothing forbidden ever happens.

A failing seed is printed; `python -m tests.simulation --seeds 1 --first SEED` plays it again, step
for step.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.plans import PLANS, TURNS
from tests.simulation.records import Findings
from tests.simulation.sabotage import SABOTAGES, sabotaged
from tests.simulation.scenario import play

# Schedules compute for seconds and wait for nothing: a busy machine only makes them slower.
pytestmark = pytest.mark.timeout(300)

SEEDS, PORTIONS = 240, 8
NIGHTLY_SEEDS, NIGHTLY_PORTIONS = 100_000, 200
FAILED_ONCE: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("states", 162, {}),
    ("pauses", 72102, {}),
    ("pauses", 99036, {"nodes": 1, "processes": 2, "floors": True}),
    ("crowd", 302859, {"nodes": 3, "processes": 2, "floors": True}),
    ("fences", 4981, {"nodes": 3, "processes": 3, "floors": False}),
    ("ttls", 33691, {"nodes": 3, "processes": 2, "floors": False}),
    ("strays", 8, {}),
    ("tasks", 14469, {"nodes": 3, "processes": 3, "floors": True}),
    ("pauses", 30202, {"nodes": 1, "processes": 3, "floors": True}),
    ("witnesses", 30482, {"nodes": 3, "processes": 3, "floors": True}),
    ("locks", 6168, {"nodes": 1, "processes": 2, "floors": True}),
    ("states", 1019959, {"nodes": 3, "processes": 2, "floors": True}),
)
"""Plan, seed, and what the world was like if the seed does not tell. The plan is named, because a
seed's own plan depends on the shares of all."""
CAUGHT_WITHIN = 400
"""Seeds, for each way to break the library."""
CAUGHT_LATE = {
    "a_cancelled_attempt_keeps_the_name": 87,
    "a_flush_goes_unseen": 95,
    "a_jump_of_a_clock_goes_unseen": 21,
    "a_loss_interrupts_no_body": 23,
    "a_renewal_extends_the_key_of_another": 35,
    "an_extension_in_flight_is_forgotten": 512,
    "jumps_without_quarantine": 37,
    "write_back_skipped": 18,
}
"""Sabotages that few schedules notice, and the seed from which they are played."""


def judge(found: Findings) -> None:
    if found.violations:
        story = "\n".join(found.log[-40:])
        pytest.fail(f"seed {found.seed} ({found.plan}): {found.violations[0]}\n{story}")


def play_portion(first: int, count: int) -> None:
    leases = 0
    for seed in range(first, first + count):
        found = play(seed)
        judge(found)
        leases += found.counts["leases"]
    assert leases > count, "too little happened for the schedules to mean anything"


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_random_schedules(portion: int) -> None:
    count = SEEDS // PORTIONS
    play_portion(portion * count, count)


@pytest.mark.nightly
def test_the_mix_does_everything_as_often_as_it_acquires() -> None:
    """Acquires that won a vote. In thousands of schedules each of the others is more frequent."""
    counts: Counter[str] = Counter()
    for seed in range(2 * len(TURNS)):
        counts += play(seed).counts
    for what in ("renewed", "reservations", "handovers", "jumps", "delays"):
        assert counts[what] > 0.85 * counts["acquires"], what


@pytest.mark.parametrize("first", range(1000, 1100, 25))
def test_whose_ticket_was_acknowledged_first_goes_first(first: int) -> None:
    judged = 0
    for seed in range(first, first + 25):
        found = play(seed, "order")
        judge(found)
        judged += found.counts["in order"]
    assert judged > 25, "too few waited for each other"


@pytest.mark.parametrize(("plan", "seed", "nature"), FAILED_ONCE)
def test_schedules_that_once_failed(plan: str, seed: int, nature: dict[str, Any]) -> None:
    judge(play(seed, plan, **nature))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("portion", range(NIGHTLY_PORTIONS))
def test_very_many_random_schedules(portion: int) -> None:
    count = NIGHTLY_SEEDS // NIGHTLY_PORTIONS
    first = int(os.environ.get("ASYNCLOCK_SEED", "1000000")) + portion * count
    print(f"seeds {first} to {first + count - 1}")
    play_portion(first, count)


@pytest.mark.parametrize("plan", [plan.name for plan in PLANS])
def test_each_operation_and_fault_of_a_plan_takes_place(plan: str) -> None:
    wanted = next(one for one in PLANS if one.name == plan)
    kinds = {*wanted.operations, *wanted.faults}
    missing = {f"fault {kind}" if kind in wanted.faults else kind for kind in kinds}
    for seed in range(CAUGHT_WITHIN):
        missing -= play(seed, plan).counts.keys()
        if not missing:
            return
    pytest.fail(f"never in {CAUGHT_WITHIN} schedules: {sorted(missing)}")


# A broken library leaves managers and tasks behind.
left_open = pytest.mark.filterwarnings(
    "ignore:.*:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@left_open
@pytest.mark.parametrize("name", sorted(SABOTAGES))
def test_a_sabotage_is_caught(name: str) -> None:
    first = CAUGHT_LATE.get(name, 0)
    with sabotaged(name) as options:
        for seed in range(first, first + CAUGHT_WITHIN):
            if play(seed, **options).violations:
                return
    pytest.fail(f"{CAUGHT_WITHIN} schedules did not notice")


@left_open
@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(SABOTAGES))
def test_a_sabotage_is_caught_by_the_ordinary_mix(name: str) -> None:
    """Each seed has its own plan here, as in `test_random_schedules`."""
    with sabotaged(name) as options:
        settings = {key: options[key] for key in options.keys() - {"plan", "faults"}}
        if not any(play(seed, **settings).violations for seed in range(1000)):
            pytest.fail("1000 schedules did not notice")


@pytest.mark.parametrize("seed", [1, 3, 17])
def test_a_seed_is_replayed_step_for_step(seed: int) -> None:
    """Also by another process, whose hashes and addresses differ."""
    first, second = play(seed), play(seed)
    assert first.log == second.log
    assert first.trace == second.trace != play(seed + 1).trace
    code = f"from tests.simulation.scenario import play; print(play({seed}).trace)"
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(root)}
    other = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, check=True
    )
    assert int(other.stdout) == first.trace
