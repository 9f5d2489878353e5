"""``nox -s everyday``: the everyday scenes of all systems side by side, as a table.

A peer runs in its environment of the benchmarks, or in this interpreter if that has its packages.
"""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.everyday import scenes
from tests.everyday.stage import Looped, Stage, stage

Play = Callable[[Stage], Awaitable[Looped | dict[str, float]]]
COLUMNS = (("asynclock", 1), ("redis-py", 1), ("asynclock", 3), ("pottery", 3))
"""pottery has the fastest Redlock for many workers on three nodes (`bars workers`)."""

PACE = (
    "{per_second:.0f} a second; least {least_share:.2f} of a fair share;"
    " longest wait {longest_wait:.1f} s"
)
UNBROKEN = "longest pause {longest_gap:.2f} s; {errors:.0f} errors; {violations:.0f} at once"
SERVED = (
    "{served:.0f} of {requests:.0f} served, {failed:.0f} failed; slowest answer {slowest:.2f} s"
)


@dataclass(frozen=True)
class Scene:
    """A row of the table."""

    title: str
    play: Play
    says: str
    """The cell, as a format of the figures."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    least_nodes: int = 1
    ours: bool = False
    """Whether only asynclock can do it."""


SCENES = (
    Scene("two looping workers, bodies of 20 ms", lambda t: scenes.workers(t, 2, 6), PACE),
    Scene("sixteen looping workers, bodies of 20 ms", lambda t: scenes.workers(t, 16, 6), PACE),
    Scene(
        "fifty requests a second behind four servers, 5 ms each, timeout 1 s",
        lambda t: scenes.web(t, every=0.08, seconds=3, timeout=1, body=0.005),
        SERVED,
    ),
    Scene(
        "a hundred requests a second, 20 ms each: twice what one name can serve",
        lambda t: scenes.web(t, every=0.04, seconds=3, timeout=1, body=0.02),
        SERVED,
    ),
    Scene(
        "cron on ten hosts at the same moment",
        lambda t: scenes.cron(t, 10, 50),
        "one host runs in {one_percent:.0f} %, none in {nobody_percent:.0f} %",
    ),
    Scene(
        "152 jobs of 5 ms for 19 customers, 16 at once",
        lambda t: scenes.jobs(t, 19, 8),
        "{done:.0f} done in {seconds:.2f} s; {overlaps:.0f} overlaps",
    ),
    Scene(
        "a deploy (SIGTERM) while the lock is held",
        scenes.deploy,
        "the next one begins after {until_next:.3f} s",
    ),
    Scene(
        "a crash (SIGKILL) while the lock is held, ttl 2 s",
        scenes.crash,
        "the next one begins after {until_next:.1f} s",
        {"ttl": 2.0},
    ),
    Scene(
        "a rolling restart of the nodes, ttl 1 s",
        lambda t: scenes.restarts(t, 5.0),
        UNBROKEN,
        {"ttl": 1.0, "max_ttl": 1.0},
        least_nodes=3,
    ),
    Scene("a node that flaps", lambda t: scenes.flapping(t, 4), UNBROKEN, {"ttl": 2.0}),
    Scene(
        "an event loop that blocks for 4 s, ttl 1 s",
        lambda t: scenes.blocked_loop(t, 4.0),
        "the next one begins after {until_next:.1f} s; the late body went on: {went_on:.0f}",
        {"ttl": 1.0},
    ),
    Scene(
        "an application that starts a second before its nodes, ttl 1 s",
        lambda t: scenes.early_application(t, 1.0),
        "first lock {until_first:.1f} s after the nodes; {errors_before:.0f} errors before",
        {"ttl": 1.0, "max_ttl": 1.0},
    ),
    Scene(
        "a cold start over a link of 30 ms",
        lambda t: scenes.cold_start(t, 0.015),
        "imported and connected in {connect:.2f} s; first lock in {first_lock:.3f} s,"
        " then {second_lock:.3f} s",
    ),
    Scene(
        "a leader that dies, ttl 1 s",
        scenes.leader_dies,
        "the next leader follows within {longest_without:.1f} s",
        {"ttl": 1.0},
        ours=True,
    ),
)


async def cell(scene: Scene, who: str, nodes: int) -> str:
    """Play a scene for one system and say what was seen."""
    if nodes < scene.least_nodes or (scene.ours and who != "asynclock"):
        return ""
    settings = {"restart_guard": False, **scene.settings}
    if "max_ttl" in settings:
        del settings["restart_guard"]  # the scene is about young nodes
    async with stage(who, nodes, **settings) as there:
        seen = await scene.play(there)
    return scene.says.format(**(seen.figures() if isinstance(seen, Looped) else seen))


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="nox -s everyday --", description=__doc__)
    parser.add_argument("scene", nargs="*", help="only scenes whose title contains one of these")
    chosen = parser.parse_args().scene
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"Load of this machine: {load} on {os.cpu_count()} cores.\n")
    where = [f"{who}, {'one node' if n == 1 else f'{n} nodes'}" for who, n in COLUMNS]
    print("| | " + " | ".join(where) + " |")
    print("|---" * (len(where) + 1) + "|")
    for scene in SCENES:
        if chosen and not any(text in scene.title for text in chosen):
            continue
        cells = [await cell(scene, who, nodes) for who, nodes in COLUMNS]
        print(f"| {scene.title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
