"""The engine under random schedules in virtual time: nothing forbidden ever happens.

A failing seed is printed; `play(seed)` plays it again, step for step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.sabotage import SABOTAGES, sabotaged
from tests.simulation.scenario import Findings, play

SEEDS, PORTIONS = 1000, 20
FAILED_ONCE = (577, 1000125, 1002805, 1027150, 1047812, 1051966, 1071049, 1081266)
NIGHTLY_SEEDS, NIGHTLY_PORTIONS = 100_000, 200
CAUGHT_WITHIN = 60
"""Seeds, for each way to break the library."""


def judge(found: Findings) -> None:
    if found.violations:
        story = "\n".join(found.log[-40:])
        pytest.fail(f"seed {found.seed}: {found.violations[0]}\n{story}")


def play_portion(first: int, count: int) -> None:
    leases = 0
    for seed in range(first, first + count):
        found = play(seed)
        judge(found)
        leases += found.leases
    assert leases > count, "too little happened for the schedules to mean anything"


@pytest.mark.parametrize("portion", range(PORTIONS))
def test_random_schedules(portion: int) -> None:
    count = SEEDS // PORTIONS
    play_portion(portion * count, count)


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_schedules_that_once_failed(seed: int) -> None:
    judge(play(seed))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("portion", range(NIGHTLY_PORTIONS))
def test_very_many_random_schedules(portion: int) -> None:
    count = NIGHTLY_SEEDS // NIGHTLY_PORTIONS
    first = int(os.environ.get("ASYNCLOCK_SEED", "1000000")) + portion * count
    print(f"seeds {first} to {first + count - 1}")
    play_portion(first, count)


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_caught(name: str) -> None:
    with sabotaged(name) as options:
        for seed in range(CAUGHT_WITHIN):
            if play(seed, **options).violations:
                return
    pytest.fail(f"{CAUGHT_WITHIN} schedules did not notice")


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
